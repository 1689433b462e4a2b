#!/usr/bin/env python3
"""Fill in [MASK] with what a pretrained BERT has learned, judge whether one sentence follows another, or
write the vectors of sentences.

python predict.py runs/own "The capital of France is [MASK] ."
python predict.py bert-base-uncased "He ate an apple ." "It was [MASK] ."
python predict.py uncased_L-12_H-768_A-12/bert_model.ckpt --file questions.txt --json
python predict.py runs/own --examples corpus/eval.txt
python predict.py runs/own --embed --file sentences.txt --output vectors.npz
"""

from __future__ import annotations

from base.errors import explain_missing

if __name__ == "__main__":
    explain_missing()  # a library that is not installed

import argparse
import json
import os
import sys
import zipfile
from dataclasses import dataclass
from typing import Any, Iterator, NamedTuple, Sequence

import numpy as np

from base.command_line import ScriptParser, count, path_name, path_names, positive_int, show_anything, whole
from base.errors import InputError
from base.files import replacing
from base.memory import ARENAS, LOADED, check_addresses
from base.options import add_options, flag, option, options_in, taken
from base.progress import Printed
from base.threads import set_threads
from bert.configuration import KEEP, PADDING
from bert.weights.names import MASKED_LM, NEXT_SENTENCE, POOLER
from bert.weights.tensors import Weights
from data.pretraining.pairs import truncated_pairs
from data.text.corpus import expand_inputs
from data.text.examples import masked_examples
from data.tokenizing.tokenizer import encode_marked
from data.tokenizing.vocab import Vocabulary
from training.entry import exit_code
from training.start.pretrained import (
    PretrainedConfig,
    add_pretrained_options,
    described_tokenizer,
    find_described,
    pretrained_config,
)

_WEIGHTS = "WEIGHTS"
EXAMPLES = 3  # as many as one looks at
SOURCES = ("file", "examples")
NPZ, TSV = ".npz", ".tsv"
OF_EMBED, NOT_OF_EMBED = ("pooling", "layer", "output"), ("json", "top_k", "examples")
_EPILOG = """WEIGHTS are recognised by their content: a folder of this project's checkpoints (the newest
complete one, or FOLDER:STEP), a .params file, a Hugging Face folder, a TensorFlow checkpoint, a
pytorch_model.bin or NVIDIA's ckpt_*.pt. docs/predict.md is the guide."""


@dataclass(frozen=True)
class PredictConfig:
    """One command. `inputs`: sentences or pairs, from the command line or the file. `examples`: files of
    text to draw them from instead."""

    weights: str
    inputs: tuple[Input, ...]
    examples: tuple[str, ...]
    described: PretrainedConfig
    json: bool = flag("one JSON object a line")
    top_k: int = option("tokens shown for each [MASK]", positive_int, default=5, unset=True)
    embed: bool = flag("write the vector of each input, in place of predictions; each TEXT is an input then")
    pooling: str = option(
        "the vector is the mean of a layer's hidden states, [CLS] and [SEP] included, or that of [CLS]",
        choices=["mean", "cls"],
        default="mean",
        unset=True,
    )
    layer: int | None = option("0 is the embedding (default: the last)", count)
    output: str | None = option(
        "an array named vectors, float32 (inputs, units), or lines of numbers with tabs between them",
        path_name,
        "FILE.npz|FILE.tsv",
    )
    truncate: bool = flag("shorten inputs that the model has too few positions for")
    batch_size: int = option(
        "inputs computed together", whole(1, 4096, "beyond which nothing gets faster"), default=32
    )
    operators: str = option(
        "as the training scripts have it (default: fused where they can be used)",
        choices=["auto", "fused", "mxnet"],
        default="auto",
    )
    padding: str = option(
        "remove: nothing is computed behind the end of short inputs, on the fused operators; for inputs of "
        "very different lengths",
        choices=PADDING,
        default=KEEP,
    )
    sentencepiece: str | None = option("the SentencePiece .model file that they were trained with", path_name)


class Input(NamedTuple):
    """A sentence, or two. `place`: where it stands, for messages. `answer`: the token behind its [MASK],
    where that is known."""

    place: str
    first: str
    second: str | None = None
    answer: int | None = None


class Question(NamedTuple):
    """An input as the network sees it: ids with [CLS] and [SEP], segments, places of [MASK]."""

    asked: Input
    ids: Sequence[int]
    segments: Sequence[int]
    masks: Sequence[int]


def parse(arguments: Sequence[str] | None) -> PredictConfig:
    """The command line. Raises InputError, also for a file that cannot be read."""
    parser = ScriptParser(
        prog="predict.py",
        description=__doc__,
        epilog=_EPILOG,
    )
    add, table = parser.add_argument, options_in(PredictConfig)
    text = "a run's folder, FOLDER:STEP, FOLDER:best, or weights in any format"
    add("weights", type=path_name, metavar=_WEIGHTS, help=text)
    add("text", metavar="TEXT", nargs="*", help="a sentence with [MASK], or two; with --embed any number")
    add("--file", type=path_name, help="many inputs: one a line, a tab between two sentences")
    text = (
        f"show {EXAMPLES} sentences of this text, one word masked in each, chosen by SHA-256 and not by the "
        "answers; globs and folders, separated by commas"
    )
    add("--examples", type=path_names, help=text)
    add_options(add, table, "json top_k truncate batch_size operators padding")
    add_options(parser.add_argument_group("vectors").add_argument, table, "embed pooling layer output")
    group = parser.add_argument_group("about the weights, where the files beside them do not say it")
    add_pretrained_options(group.add_argument)
    add_options(group.add_argument, table, "sentencepiece")
    options = parser.parse_intermixed_args(arguments)  # TEXT after options, too
    named = [f"--{name} {value}" for name, value in vars(options).items() if name in SOURCES and value]
    named += ["sentences on the command line"] if options.text else []
    if len(named) > 1:
        raise InputError(f"{' and '.join(named)} exclude each other")
    inputs: list[Input] = []
    _check_embed(options)
    if options.file:
        inputs = list(_read(options.file))
    elif options.embed:
        inputs = [Input(f"text {number}", text) for number, text in enumerate(options.text, 1)]
    elif not options.examples:
        if not 1 <= len(options.text) <= 2:
            raise InputError(f"give one sentence with [MASK], or two, or --file (not {len(options.text)})")
        inputs = [Input("the text", *options.text)]
    examples = tuple(expand_inputs(options.examples, "--examples")) if options.examples else ()
    if options.vocab and options.sentencepiece:
        raise InputError("--vocab and --sentencepiece exclude each other: each brings its own vocabulary")
    described = pretrained_config(options)
    return taken(PredictConfig, options, inputs=tuple(inputs), examples=examples, described=described)


def _check_embed(options: argparse.Namespace) -> None:
    """Raises InputError for options that do not fit --embed, or its absence."""
    given = [name for name in OF_EMBED if getattr(options, name) is not None]
    if not options.embed:
        if given:
            raise InputError(f"--{given[0]} is for --embed")
        return
    excluded = [name for name in NOT_OF_EMBED if getattr(options, name)]
    if excluded:
        raise InputError(f"--embed and --{excluded[0]} exclude each other")
    if not (options.file or options.text):
        raise InputError("--embed: give texts, or --file")
    if options.output is None or not options.output.endswith((NPZ, TSV)):
        raise InputError("--embed needs --output, a file whose name ends with .npz or .tsv")
    if os.path.isdir(options.output) or not os.path.isdir(os.path.dirname(options.output) or "."):
        raise InputError(f"--output {options.output}: no file can be there; name one in a folder that exists")
    if options.file and os.path.realpath(options.file) == os.path.realpath(options.output):
        raise InputError(f"--output {options.output} would replace --file; name another file")


def prepare(config: PredictConfig) -> tuple[Weights, Vocabulary, list[Question]]:
    """Opens the weights, and tokenizes and checks the inputs. MXNet is not imported.

    Raises:
        InputError: as `find_described` and `described_tokenizer`; too high a layer; naming the line, for an
            input that is too long (unless it is to be truncated), asks for nothing, or asks for what a
            missing head would answer.
    """
    weights = find_described(config.weights, _WEIGHTS, config.described)
    if config.layer is not None and config.layer > weights.config.layers:
        raise InputError(f"--layer {config.layer}: {weights.source} has {weights.config.layers} layers")
    settings = described_tokenizer(weights, _WEIGHTS, config.described, config.sentencepiece)
    vocabulary, tokenizer, inputs = settings.vocabulary, settings.build(), config.inputs
    if config.examples:
        drawn = masked_examples(config.examples, tokenizer, vocabulary, EXAMPLES)
        inputs = tuple(Input("--examples", text, answer=token) for text, token in drawn)
    texts = [text for each in inputs for text in (each.first, each.second or "")]
    encoded = iter(encode_marked(texts, tokenizer, vocabulary))
    made = []
    for asked in inputs:
        first, second = next(encoded), next(encoded)
        masks = (first + second).count(vocabulary.mask_id)
        if not config.embed:
            _check(asked, masks, weights)
        elif not (first or second):
            raise InputError(f"{asked.place}: no token is left of the text; remove it")
        if asked.second is not None and weights.config.token_types < 2:
            raise InputError(f"{asked.place}: {weights.source} has one token type, so it knows no pairs")
        if asked.second is not None and not (first and second):
            raise InputError(f"{asked.place}: one of its two sentences is empty")
        special = 2 if asked.second is None else 3
        most = weights.config.positions - special
        if len(first) + len(second) > most:
            if not config.truncate or most < 2:
                raise InputError(
                    f"{asked.place}: {len(first) + len(second) + special} tokens with [CLS] and [SEP], but "
                    f"{weights.source} has {weights.config.positions} positions; shorten it, or give "
                    "--truncate"
                )
            kept = truncated_pairs(np.array([len(first)]), np.array([len(second)]), most)
            first, second = (tokens[: int(size[0])] for tokens, size in zip((first, second), kept))
            if (first + second).count(vocabulary.mask_id) < masks:
                raise InputError(f"{asked.place}: --truncate would cut off a [MASK]; move it to the front")
        ids = [vocabulary.cls_id, *first, vocabulary.sep_id]
        segments = [0] * len(ids)
        if asked.second is not None:
            ids += [*second, vocabulary.sep_id]
            segments += [1] * (len(second) + 1)
        places = [place for place, token in enumerate(ids) if token == vocabulary.mask_id]
        made.append(Question(asked, ids, segments, places))
    return weights, vocabulary, made


def _check(asked: Input, masks: int, weights: Weights) -> None:
    """Raises InputError where there is nothing to answer, or nothing to answer with."""
    if not masks and asked.second is None:
        raise InputError(f"{asked.place}: no [MASK] and no second sentence, so there is nothing to predict")
    if masks and MASKED_LM in weights.missing:
        raise InputError(f"{asked.place}: [MASK] needs the {MASKED_LM}, which {weights.source} lacks")
    if not masks and not has_next_sentence(weights):
        lacking = " and ".join(part for part in (POOLER, NEXT_SENTENCE) if part in weights.missing)
        raise InputError(f"{asked.place}: two sentences need the {lacking}, which {weights.source} lacks")


def has_next_sentence(weights: Weights) -> bool:
    """Whether all is there that answers if a sentence follows another."""
    return POOLER not in weights.missing and NEXT_SENTENCE not in weights.missing


def answer(
    config: PredictConfig, weights: Weights, vocabulary: Vocabulary, asked: Sequence[Question]
) -> Iterator[dict[str, Any]]:
    """Answers as JSON has them, in the order of the questions.

    Raises:
        InputError: operators or padding that cannot be had, weights that cannot be read, or outputs that
            are not finite.
    """
    from tasks.pretraining.scores import Computing, Encoded, Predictor

    predictor = Predictor(weights, Computing(config.operators, config.padding))
    for start in range(0, len(asked), config.batch_size):
        batch = asked[start : start + config.batch_size]
        found = predictor([Encoded(each.ids, each.segments, each.masks) for each in batch])
        for (asked_for, *_), (tokens, next_sentence) in zip(batch, found):
            follows = asked_for.second is not None and has_next_sentence(weights)
            answers: dict[str, Any] = {
                "text": asked_for.first,
                "second": asked_for.second,
                "masks": [_likeliest(row, vocabulary, config.top_k) for row in tokens],
                "next_sentence": next_sentence if follows else None,
            }
            if asked_for.answer is not None:  # the token that stood in the place of the one [MASK]
                own = tokens[0][asked_for.answer]
                answers["true"] = {
                    "token": vocabulary.tokens[asked_for.answer],
                    "id": asked_for.answer,
                    "probability": float(own),
                    "rank": 1 + int((tokens[0][: len(vocabulary)] > own).sum()),  # among all
                }
            yield answers


def _likeliest(probabilities: np.ndarray, vocabulary: Vocabulary, count: int) -> list[dict[str, Any]]:
    """Of the tokens that have a name; rows of padding have none."""
    order = np.argsort(-probabilities[: len(vocabulary)], kind="stable")[:count]
    return [
        {"token": vocabulary.tokens[index], "id": int(index), "probability": float(probabilities[index])}
        for index in order
    ]


def embed(config: PredictConfig, weights: Weights, asked: Sequence[Question]) -> str:
    """Writes the vectors, in the order of the inputs; returns a line that says so.

    Raises:
        InputError: operators or padding that cannot be had, weights that cannot be read, or outputs that
            are not finite.
        OSError: from writing; nothing is left of the output then.
    """
    from tasks.pretraining.scores import Computing, Embedder, Encoded

    layer = weights.config.layers if config.layer is None else config.layer
    embedder = Embedder(weights, Computing(config.operators, config.padding), layer, config.pooling)
    progress, done = Printed(), 0
    progress.begin("embedding", sum(len(each.ids) for each in asked), unit="tokens")

    def vectors() -> Iterator[np.ndarray]:
        nonlocal done
        for start in range(0, len(asked), config.batch_size):
            batch = asked[start : start + config.batch_size]
            yield embedder([Encoded(each.ids, each.segments, each.masks) for each in batch])
            done += sum(len(each.ids) for each in batch)
            progress.update(done, {})

    shape = len(asked), weights.config.units
    assert config.output is not None
    try:
        with replacing(config.output) as file:
            if config.output.endswith(NPZ):
                with (  # as numpy.savez does, block by block
                    zipfile.ZipFile(file, "w") as archive,
                    archive.open("vectors.npy", "w", force_zip64=True) as array,
                ):
                    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(array, header)
                    for block in vectors():
                        array.write(block.astype("<f4", copy=False).tobytes())
            else:
                for block in vectors():  # nine digits, from which float32 can be restored
                    np.savetxt(file, block, fmt="%.9g", delimiter="\t")
    finally:
        progress.end()
    what = f"layer {layer} of {weights.config.layers}, {config.pooling}"
    return f"{config.output}: {shape[0]:,} vectors of {shape[1]:,} numbers, {what}"


def lines(found: dict[str, Any]) -> Iterator[str]:
    """An answer for people."""
    second = found["second"]
    yield found["text"] if second is None else f"{found['text']} | {second}"
    for number, tokens in enumerate(found["masks"], 1):
        name = "[MASK]" if len(found["masks"]) == 1 else f"[MASK] {number}"
        yield f"  {name}  " + "  ".join(f"{each['token']} {each['probability']:.1%}" for each in tokens)
    if "true" in found:
        true = found["true"]
        place = f"number {true['rank']:,} of the answers, {true['probability']:.1%}"
        yield f"  the word was {true['token']}: {place}"
    if found["next_sentence"] is not None:
        yield f"  the second sentence follows the first: {found['next_sentence']:.1%}"
    elif second is not None:
        yield f"  whether the second sentence follows is not known: the weights lack the {NEXT_SENTENCE}"


def _read(path: str) -> Iterator[Input]:
    """The inputs of a file: one a line, a tab between two sentences."""
    try:
        with open(path, "rb") as file:
            content = file.read().split(b"\n")
    except OSError as error:
        raise InputError(f"--file {path}: cannot be read ({error.strerror})") from error
    if not content[-1]:
        content.pop()
    if not content:
        raise InputError(f"--file {path} is empty; it has one input a line")
    for number, raw in enumerate(content, 1):
        place = f"--file {path}, line {number}"
        try:
            sentences = raw.decode("utf-8").rstrip("\r").split("\t")
        except UnicodeDecodeError as error:
            raise InputError(f"{place}: not valid UTF-8") from error
        if len(sentences) > 2:
            raise InputError(f"{place}: {len(sentences) - 1} tabs; one tab separates two sentences")
        yield Input(place, sentences[0], sentences[1] if len(sentences) > 1 else None)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code.

    Raises:
        InputError: bad input, before anything is printed.
    """
    show_anything()
    config = parse(arguments)
    weights, vocabulary, asked = prepare(config)
    check_addresses(LOADED, ARENAS, "MXNet")
    set_threads()  # before mxnet is imported below
    for note in weights.notes:
        print(f"note: {note}", file=sys.stderr)
    if config.embed:
        print(embed(config, weights, asked))
        return 0
    escaped = not str(sys.stdout.encoding).lower().startswith("utf")
    for found in answer(config, weights, vocabulary, asked):
        print(json.dumps(found, ensure_ascii=escaped) if config.json else "\n".join(lines(found)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
