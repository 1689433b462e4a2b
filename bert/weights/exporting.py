"""Weights into a folder of another format, with configuration and vocabulary, as its own programs write them.

huggingface   model.safetensors, config.json, vocab.txt, tokenizer_config.json
gluonnlp      model.params, bert_config.json, vocab.txt, vocab.json (a BERTVocab)
tensorflow    bert_model.ckpt.{index,data-00000-of-00001}, checkpoint, bert_config.json, vocab.txt
onnx          model.onnx, model.onnx.data, config.json, vocab.txt, tokenizer_config.json
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from base.errors import InputError
from base.files import replacing
from bert.config_file import SIZE_KEYS
from bert.configuration import LAYER_NORM_EPSILON, RELU
from bert.weights.beside import gluonnlp_vocabulary
from bert.weights.bundle import write_bundle
from bert.weights.names import DECODER, DECODER_BIAS, EMBEDDING, MASKED_LM, NEXT_SENTENCE, names_of, part_of
from bert.weights.onnx_file import GRAPH, NUMBERS, write_onnx
from bert.weights.params_file import write_params
from bert.weights.safetensors_file import write_safetensors
from bert.weights.tensors import Tensor, Weights, transposed
from data.tokenizing.vocab import SPECIAL_TOKENS

FORMATS = ("huggingface", "gluonnlp", "tensorflow", "onnx")
_PARAMS, _CONFIG, _VOCAB, _VOCAB_JSON = "model.params", "bert_config.json", "vocab.txt", "vocab.json"
_SAFETENSORS, _HF_CONFIG, _TOKENIZER = "model.safetensors", "config.json", "tokenizer_config.json"
_OF_HUGGING_FACE = ("huggingface", "onnx")  # with its configuration beside the weights
_PREFIX, _LATEST = "bert_model.ckpt", "checkpoint"
FILES = frozenset(
    (_PARAMS, _CONFIG, _VOCAB, _VOCAB_JSON, _SAFETENSORS, _HF_CONFIG, _TOKENIZER, _LATEST)
    + (f"{_PREFIX}.index", f"{_PREFIX}.data-00000-of-00001", GRAPH, NUMBERS)
)


def export(weights: Weights, folder: str, to: str) -> None:
    """Writes the files of a format into a folder that exists, one tensor in memory at a time.

    Raises:
        InputError: from reading the weights, or the format has no name for one of them.
        OSError: from writing.
    """
    tensors = weights.tensors
    if to == "tensorflow" and DECODER in tensors:
        raise InputError(
            f"--to tensorflow: the decoder of {weights.source} has a weight of its own, which no checkpoint "
            "of Google's has; leave the heads out with --encoder_only, or name another format"
        )
    if to == "gluonnlp":
        with replacing(os.path.join(folder, _PARAMS)) as file:
            # With a tied decoder's weight, where save_parameters has it.
            names = [name for name in tensors if name != DECODER]
            if DECODER_BIAS in names:
                names.insert(names.index(DECODER_BIAS), DECODER)
            write_params(file, {name: tensors.get(name, tensors[EMBEDDING]) for name in names})
    elif to == "huggingface":
        prefix = "bert." if _architecture(weights) == "BertModel" else ""  # BertModel's own names lack it
        named = {names_of(name).huggingface[len(prefix) :]: tensor for name, tensor in tensors.items()}
        if DECODER in tensors:  # transformers then tie neither this weight nor the bias
            named["cls.predictions.decoder.bias"] = tensors[DECODER_BIAS]
        write_safetensors(os.path.join(folder, _SAFETENSORS), named)
    elif to == "onnx":
        write_onnx(weights, folder)
    else:
        variables = {}
        for name, tensor in tensors.items():
            row = names_of(name)
            variables[row.tensorflow] = transposed(tensor) if row.kernel else tensor
        write_bundle(os.path.join(folder, _PREFIX), variables)
        _write(
            os.path.join(folder, _LATEST),
            f'model_checkpoint_path: "{_PREFIX}"\nall_model_checkpoint_paths: "{_PREFIX}"\n',
        )
    config = _HF_CONFIG if to in _OF_HUGGING_FACE else _CONFIG
    _write_json(os.path.join(folder, config), configuration(weights, to))
    if weights.vocabulary is not None:
        _write_vocabulary(weights, weights.vocabulary, folder, to)


def warnings_of(weights: Weights, to: str) -> list[str]:
    """Sentences about what the format, or the programs that read it, cannot express."""
    found = []
    if weights.vocabulary is None:
        found.append("no vocabulary lies beside the weights, so none is written; give --vocab")
    config = weights.config
    if to == "tensorflow" and config.activation == "erf":
        found.append(
            "the network has GELU by erf, but Google's code computes tanh from any bert_config.json: its "
            'outputs differ by about 1e-3; "gelu_form" in bert_config.json is read by this project alone'
        )
    other = {f"layer-norm epsilon {config.epsilon:g}": config.epsilon != LAYER_NORM_EPSILON}
    if to == "gluonnlp":
        other.update({"ReLU": config.activation == RELU, "a decoder of its own": DECODER in weights.tensors})
    words = ", ".join(each for each, has in other.items() if has)
    if to not in _OF_HUGGING_FACE and words:
        reader = "GluonNLP's named models have" if to == "gluonnlp" else "Google's code has"
        found.append(
            f"the network has {words}, and {reader} not: bert_config.json says so, where this project alone "
            "looks for it"
        )
    dtypes = {tensor.dtype for tensor in weights.tensors.values()}
    if to == "tensorflow" and dtypes != {np.dtype(np.float32)}:
        found.append(
            f"weights are written in {', '.join(sorted(map(str, dtypes)))}, but Google's code restores "
            "float32 alone; give --dtype float32 for it"
        )
    return found


def configuration(weights: Weights, to: str) -> dict[str, Any]:
    """The content of bert_config.json, or for Hugging Face of config.json."""
    config = weights.config
    common = {
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": RELU if config.activation == RELU else "gelu",
        "hidden_dropout_prob": 0.1,
        "initializer_range": 0.02,
        "vocab_size": weights.vocab_size,
        **{key: getattr(config, field) for key, field in SIZE_KEYS.items()},
    }
    if config.epsilon != LAYER_NORM_EPSILON:
        common["layer_norm_eps"] = config.epsilon
    if not config.tied:
        common["tie_word_embeddings"] = False
    if to not in _OF_HUGGING_FACE:  # "gelu" leaves open which, in Google's spelling
        return common if config.activation == RELU else {**common, "gelu_form": config.activation}
    words = weights.vocabulary
    return {
        "architectures": [_architecture(weights)],
        "layer_norm_eps": LAYER_NORM_EPSILON,
        **common,
        **({"hidden_act": "gelu_new"} if config.activation == "tanh" else {}),
        "model_type": "bert",
        "pad_token_id": list(words).index("[PAD]") if words is not None else 0,
        "torch_dtype": str(weights.tensors[EMBEDDING].dtype),
    }


def converted(weights: Weights, dtype: str | None, passed: Callable[[int], None]) -> Weights:
    """The same weights, whose numbers are checked while they are read.

    Args:
        dtype: float16, float32 or float64 to convert them to; None leaves them.
        passed: gets the number of bytes of each tensor that has been read.

    Raises:
        InputError: when a tensor is read that holds an infinity or a NaN, perhaps only in `dtype`.
    """
    wanted = np.dtype(dtype) if dtype else None

    def checked(name: str, tensor: Tensor) -> Tensor:
        final = wanted or tensor.dtype

        def read() -> np.ndarray:
            with np.errstate(over="ignore"):  # what float16 cannot hold is found below
                array = tensor.read().astype(final, copy=False)
            if not np.isfinite(array).all():
                raise InputError(
                    f"INPUT {weights.source}: numbers of {name} are not finite in {final}; name weights that "
                    "were saved before training diverged" + (", or another --dtype" if wanted else "")
                )
            passed(tensor.dtype.itemsize * array.size)
            return array

        return Tensor(tensor.shape, final, read)

    return replace(weights, tensors={name: checked(name, each) for name, each in weights.tensors.items()})


def looks_cased(vocabulary: Sequence[str]) -> bool:
    """Whether a vocabulary has upper case, besides its special tokens and unused places."""
    return any(token != token.lower() and not token.startswith("[") for token in vocabulary)


def _architecture(weights: Weights) -> str:
    heads = {part_of(name) for name in weights.tensors} & {MASKED_LM, NEXT_SENTENCE}
    return "BertForMaskedLM" if heads == {MASKED_LM} else "BertForPreTraining" if heads else "BertModel"


def _write_vocabulary(weights: Weights, vocabulary: Sequence[str], folder: str, to: str) -> None:
    _write(os.path.join(folder, _VOCAB), "".join(f"{token}\n" for token in vocabulary))
    if to == "gluonnlp":
        _write(os.path.join(folder, _VOCAB_JSON), gluonnlp_vocabulary(vocabulary))
    lower = not (looks_cased(vocabulary) if weights.cased is None else weights.cased)
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    content = {
        **dict(zip(names, SPECIAL_TOKENS)),
        "do_lower_case": lower,
        "model_max_length": weights.config.positions,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "tokenizer_class": "BertTokenizer",
    }
    _write_json(os.path.join(folder, _TOKENIZER), content)


def _write_json(path: str, content: Mapping[str, Any]) -> None:
    _write(path, json.dumps(content, indent=2, sort_keys=True) + "\n")


def _write(path: str, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
