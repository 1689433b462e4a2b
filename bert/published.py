"""Downloads from GluonNLP's model zoo, by --dataset_name: vocabularies, and Google's parameters."""

from __future__ import annotations

import gluonnlp
import mxnet as mx
from gluonnlp.model.bert import BERTModel

from data.errors import InputError
from data.vocab import Vocabulary, vocabulary_from_tokens


def download_vocabulary(dataset_name: str) -> Vocabulary:
    """The vocabulary of a published data set; a second call finds it on disk.

    Raises:
        InputError: it cannot be downloaded.
    """
    try:
        tokens = gluonnlp.data.utils._load_pretrained_vocab(dataset_name, cls=gluonnlp.vocab.BERTVocab)
    except Exception as error:  # whatever the zoo's downloader, zip reader or loader raises
        raise InputError(
            f"--dataset_name {dataset_name}: its vocabulary cannot be downloaded ({type(error).__name__}); "
            "without network give --vocab vocab.txt (python -m data.train_vocab makes one) or --sentencepiece"
        ) from error
    return vocabulary_from_tokens(tokens.idx_to_token, dataset_name)


def load_published(model: BERTModel, name: str, dataset_name: str, device: mx.Context, dtype: str) -> None:
    """Google's parameters, through GluonNLP's model zoo.

    Raises:
        InputError: the download failed, or none is published for this pair.
    """
    try:
        published, _ = gluonnlp.model.get_model(name, dataset_name=dataset_name, pretrained=True, ctx=device)
    except Exception as error:  # as above
        raise InputError(
            f"--pretrained: {name} for {dataset_name} cannot be downloaded ({type(error).__name__}); "
            "without network start from random parameters, or name a .params file in ckpt_dir by --start_step"
        ) from error
    model.initialize(ctx=device)
    source = published._collect_params_with_prefix()
    for key, parameter in model._collect_params_with_prefix().items():
        parameter.set_data(source[key].data(device))
    model.cast(dtype)
