"""Messages that are sent, and the memory that they need."""

from __future__ import annotations

import pytest

from comparison.backends import BACKENDS
from comparison.messages.plan import (
    DEFAULT_SIZES,
    bytes_needed,
    left_out_of,
    parse_message,
    parse_messages,
    worker_plan,
)


@pytest.mark.parametrize(
    "text, tensors, nbytes",
    [
        ("4KB", 1, 4096),
        ("512MB", 1, 536_870_912),
        ("200x64KB", 200, 13_107_200),
        ("8B", 1, 8),
        ("1GB", 1, 2**30),
    ],
)
def test_sizes_are_read(text, tensors, nbytes):
    message = parse_message(text)
    assert (message.name, message.tensors, message.nbytes) == (text, tensors, nbytes)


@pytest.mark.parametrize("dtype, item", [("float32", 4), ("float16", 2)])
def test_the_gradients_of_bert_base(dtype, item):
    """As many as the model of bert_12_768_12 has parameters; the largest is the word embedding's."""
    (message,) = parse_messages(["bert-base"], dtype)
    assert message.nbytes == item * 110_106_428 and max(message.array_bytes) == item * 30522 * 768
    (sent,) = worker_plan([message], dtype, 2, 0.5, seed=0)["messages"]
    assert sum(sent["elements"]) == 110_106_428 and len(sent["elements"]) == message.tensors == 206


@pytest.mark.parametrize("text", ["4", "4kb", "KB", "0KB", "0x4KB", "6B", "-4KB", "4KB ", "1.5MB", "4x", ""])
def test_other_sizes_are_rejected(text):
    with pytest.raises(ValueError, match="write it like|at least one array"):
        parse_message(text)


def test_the_default_goes_from_4_kb_to_512_mb():
    messages = parse_messages(DEFAULT_SIZES, "float32")
    single = [message.nbytes for message in messages if message.tensors == 1]
    assert single == sorted(single) and single[0] == 4 * 1024 and single[-1] == 512 * 1024**2
    assert messages[-1].tensors == 200


@pytest.mark.parametrize(
    "texts, dtype, said",
    [
        (["4KB", "64KB", "4KB"], "float32", "4KB is given twice"),
        (["1024KB", "1MB"], "float32", "1MB is given twice"),
        (["8GB"], "float32", "at most 2147483647 elements"),
        (["4GB"], "float16", "at most"),
    ],
)
def test_lists_that_cannot_be_sent(texts, dtype, said):
    with pytest.raises(ValueError, match=said):
        parse_messages(texts, dtype)


def test_what_does_not_fit_is_left_out_with_the_reason():
    messages = parse_messages(["4KB", "256MB", "512MB", "20x64MB"], "float32")
    left_out = left_out_of(BACKENDS["hvd_mpi"], 2, messages, 2.5e9)
    assert list(left_out) == ["512MB", "20x64MB"]
    assert left_out["512MB"] == "left out: needs about 3.0 GiB, 2.3 GiB are available"
    assert left_out_of(BACKENDS["hvd_mpi"], 2, messages, 1e12) == {}


def test_byteps_needs_memory_for_all_that_it_has_ever_sent():
    for key, grows in (("hvd_mpi", False), ("hvd_gloo", False), ("byteps", True), ("byteps_local", True)):
        one, two = (bytes_needed(BACKENDS[key], 2, sent) for sent in ([2**29], [2**28, 2**29]))
        assert (two > one) == grows, key
    assert bytes_needed(BACKENDS["byteps"], 2, [2**29]) > bytes_needed(BACKENDS["byteps_local"], 2, [2**29])


def test_plan_of_the_ranks():
    """Its limit leaves time for the largest message."""
    messages = [parse_messages([text], "float32") for text in ("4KB", "512MB")]
    small, large = (worker_plan(each, "float32", 2, 0.5, seed=0)["timeout_s"] for each in messages)
    assert 60 < small < 61 and 160 < large < 180
    plan = worker_plan(parse_messages(["2x8KB"], "float16"), "float16", 3, 0.25, seed=7)
    assert plan["messages"] == [{"name": "2x8KB", "elements": [4096, 4096]}]
    assert (plan["dtype"], plan["ranks"], plan["seconds"], plan["seed"]) == ("float16", 3, 0.25, 7)
