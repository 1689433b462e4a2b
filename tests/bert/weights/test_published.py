"""The model zoo's downloads. The network is not asked: what it would bring is put in its place."""

from __future__ import annotations

import sys

import gluonnlp
import mxnet as mx
import numpy as np
import pytest

from base.errors import InputError
from bert.configuration import named_config
from bert.model import build_model, initialize, trainable
from bert.weights import published
from tests.processes import run_command

DATASET = "book_corpus_wiki_en_uncased"


def test_a_vocabulary_on_disk_is_read_through_gluonnlp(tmp_path):
    """GluonNLP's own loader reads its own format; only the checksum of the real file is not asked for."""
    code = f"""
import os, gluonnlp
from gluonnlp.data import utils
words = [["the", "##ing", "word"]]
vocabulary = gluonnlp.vocab.BERTVocab(gluonnlp.data.count_tokens(words[0]))
name, extension, _, _ = utils._get_vocab_tokenizer_info("{DATASET}", "unused")
root = os.path.join(os.environ["MXNET_HOME"], "models")
os.makedirs(root)
with open(os.path.join(root, name + extension), "w") as file:
    file.write(vocabulary.to_json())
utils.check_sha1 = lambda path, sha1: True
from bert.weights.published import download_vocabulary
found = download_vocabulary("{DATASET}")
assert sorted(found.tokens) == sorted(vocabulary.idx_to_token), found.tokens
assert found.tokens[found.mask_id] == "[MASK]" and found.tokens[found.cls_id] == "[CLS]"
print("read", len(found))
"""
    result = run_command([sys.executable, "-c", code], env={"MXNET_HOME": str(tmp_path)}).check()
    assert result.stdout == "read 8\n"


def test_published_parameters_are_taken_over(monkeypatch):
    source = build_model(named_config("bert_1_16_2"), 40)
    initialize(source, mx.cpu(), "float32", seed=7)
    monkeypatch.setattr(gluonnlp.model, "get_model", lambda name, **options: (source, None))
    ours = build_model(named_config("bert_1_16_2"), 40)
    initialize(ours, mx.cpu(), "float32", seed=8)
    published.load_published(ours, "bert_1_16_2", DATASET, mx.cpu())
    for name, parameter in trainable(ours).items():
        np.testing.assert_array_equal(parameter.data().asnumpy(), trainable(source)[name].data().asnumpy())


@pytest.mark.parametrize("failure", [ConnectionError("no route"), RuntimeError("failed downloading")])
def test_without_network_one_line_names_the_alternatives(failure, monkeypatch, capsys):
    def fail(name, **options):
        print("download failed, retrying, 2 attempts left")
        raise failure

    monkeypatch.setattr(gluonnlp.model, "get_model", fail)
    with pytest.raises(InputError, match="--vocab") as caught:
        published.download_vocabulary(DATASET)
    assert f"--dataset_name {DATASET}" in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(InputError, match="--start_step"):
        published.load_published(None, "bert_12_768_12", DATASET, mx.cpu())
    assert capsys.readouterr().out == ""
