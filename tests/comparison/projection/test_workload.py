"""The model's shapes and times against counts made independently."""

from __future__ import annotations

import pytest

from bert.configuration import named_config
from comparison.projection.workload import FORWARD_SHARE, Part, Workload, bert_parts, update_seconds


def test_the_gradients_are_those_of_the_real_model():
    """Array by array, in the order of their sizes."""
    import mxnet as mx

    from bert.model import build_model, initialize, trainable

    model = build_model(named_config("bert_2_16_2"), 50)
    initialize(model, mx.cpu(), "float32", seed=0)
    real = sorted(parameter.data().size for parameter in trainable(model).values())
    parts = bert_parts(named_config("bert_2_16_1"), vocab_size=50)
    assert sorted(size for part in parts for size in part.gradients) == real


def test_gradients_become_ready_from_the_last_part_to_the_first():
    parts = bert_parts(named_config("bert_3_64_1"))
    work = Workload(parts, compute_s=0.9, optimizer_s=0.1, gradient_bytes=4, sequences=8)
    messages = work.messages()
    times = [message.ready_s for message in messages]
    assert times == sorted(times)
    assert sum(message.nbytes for message in messages) == work.total_bytes == 4 * work.elements
    # The word embedding is what an update waits for; it is ready when the backward pass ends.
    assert messages[-1].nbytes == 4 * 30522 * 64
    assert times[-1] == pytest.approx(0.9)
    assert times[0] > 0.9 * FORWARD_SHARE  # the heads' gradients, at the beginning of the backward pass
    # Each of three equal layers takes a third of what lies between the heads and the embeddings.
    ends = sorted(set(times))
    assert len(ends) == 4
    gaps = [later - earlier for earlier, later in zip(ends, ends[1:])]
    assert gaps == pytest.approx([gaps[0]] * 3)
    heads = 0.6 * parts[-1].flops / sum(part.flops for part in parts)
    assert ends[0] == pytest.approx(0.3 + heads)


def test_accumulation_delays_the_gradients_and_adds_none():
    parts = bert_parts(named_config("bert_2_64_1"))
    once = Workload(parts, 0.5, 0.1, 2, 8).messages()
    thrice = Workload(parts, 0.5, 0.1, 2, 8, accumulate=3).messages()
    assert [m.nbytes for m in once] == [m.nbytes for m in thrice]
    assert [m.ready_s + 1.0 for m in once] == pytest.approx([m.ready_s for m in thrice])


def test_without_overlap_all_wait_for_the_end():
    work = Workload(bert_parts(named_config("bert_2_64_1")), 0.5, 0.1, 2, 8, accumulate=2, overlap=False)
    assert {message.ready_s for message in work.messages()} == {1.0}


def test_an_update_is_bound_by_memory():
    assert update_seconds([Part("all", (110_000_000,), 1)], 900.0) == pytest.approx(110e6 * 40 / 900e9)
