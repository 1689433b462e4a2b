"""Downloads from GluonNLP's model zoo, by --dataset_name: vocabularies, and Google's parameters."""

from __future__ import annotations

import contextlib
import io
import zipfile
from typing import Any

import gluonnlp
import mxnet as mx
from gluonnlp.model.bert import BERTModel

from base.errors import InputError
from data.tokenizing.vocab import Vocabulary, vocabulary_from_tokens

# What the zoo's downloader and loaders raise: no network, a full disk, a file of another content.
_FAILURES = (OSError, RuntimeError, ValueError, zipfile.BadZipFile)


def download_vocabulary(dataset_name: str) -> Vocabulary:
    """The vocabulary of a published data set; a second call finds it on disk.

    Raises:
        InputError: it cannot be downloaded.
    """
    try:
        # The zoo gives a vocabulary together with a model, which costs nothing while it is not initialized.
        _, vocabulary = _from_zoo("bert_12_768_12", dataset_name=dataset_name, pretrained=False)
    except _FAILURES as error:
        raise InputError(
            f"--dataset_name {dataset_name}: its vocabulary cannot be downloaded ({type(error).__name__}); "
            "without network give --vocab vocab.txt (python -m data.train_vocab makes one) or --sentencepiece"
        ) from error
    return vocabulary_from_tokens(vocabulary.idx_to_token, dataset_name)


def load_published(model: BERTModel, name: str, dataset_name: str, device: mx.Context) -> None:
    """Overwrites an initialized model with Google's parameters, in the model's dtype.

    Raises:
        InputError: the download failed, or none is published for this pair.
    """
    try:
        published, _ = _from_zoo(name, dataset_name=dataset_name, pretrained=True, ctx=device)
    except _FAILURES as error:
        raise InputError(
            f"--pretrained: {name} for {dataset_name} cannot be downloaded ({type(error).__name__}); "
            "without network start from random parameters, or name a .params file in ckpt_dir by --start_step"
        ) from error
    source = published._collect_params_with_prefix()
    for key, parameter in model._collect_params_with_prefix().items():
        parameter.set_data(source[key].data(device))


def _from_zoo(name: str, **options: Any) -> tuple[BERTModel, gluonnlp.vocab.BERTVocab]:
    # The downloader prints each of its attempts; where they all fail, one line of ours says so.
    with contextlib.redirect_stdout(io.StringIO()):
        return gluonnlp.model.get_model(name, **options)
