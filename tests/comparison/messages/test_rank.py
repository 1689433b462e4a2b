"""The values of messages: their mean is exact, and whatever a library might do wrong changes it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from comparison.messages.rank import PERIOD, KnownValues

CASES = [(dtype, ranks) for dtype in ("float32", "float16") for ranks in (2, 3, 4, 7, 8, 64)]


@pytest.mark.parametrize("dtype, ranks", CASES)
def test_the_mean_is_exact(dtype, ranks):
    """Against fractions: neither what is sent, nor any sum on the way, nor the mean is rounded."""
    values = KnownValues(dtype, ranks, seed=5)
    sent = [values.sent(rank, 3) for rank in range(ranks)]
    mean = values.mean(3)
    assert mean.dtype == dtype and all(each.dtype == dtype for each in sent)
    for place in range(0, PERIOD, 97):
        exact = sum(Fraction(float(each[place])) for each in sent) / ranks
        assert exact == Fraction(float(mean[place]))
    divisor = np.dtype(dtype).type(ranks)
    if dtype == "float32":
        found = [sum(order[1:], order[0]) / divisor for order in (sent, sent[::-1])]
    elif ranks & (ranks - 1) == 0:
        found = [sum((each / divisor for each in sent[1:]), sent[0] / divisor)]
    else:
        found = []  # below: rounded
    for each in found:
        assert each.dtype == dtype and not values.differing(each, mean).size


@pytest.mark.parametrize("dtype, ranks", CASES)
def test_what_may_go_wrong_differs_nearly_everywhere(dtype, ranks):
    values = KnownValues(dtype, ranks, seed=5)
    sent = [values.sent(rank, 3).astype(np.float64) for rank in range(ranks)]
    mean = values.mean(3)
    mistakes = {
        "stale": values.mean(2),
        "another message": KnownValues(dtype, ranks, seed=6).mean(3),
        "sum": mean * ranks,
        "divided twice": mean.astype(np.float64) / ranks,
        "not exchanged": sent[0],
        "middle rank's own": sent[ranks // 2],
        "a rank is missing": mean - sent[-1] / ranks,
        "a rank is doubled": mean + (sent[0] - sent[-1]) / ranks,
        "one place further": np.roll(mean, 1),
        "the piece after": np.roll(mean, 1 << 20),
        "NaN": np.full(PERIOD, np.nan),
    }
    for name, found in mistakes.items():
        share = values.differing(np.asarray(found).astype(dtype), mean).size / PERIOD
        # With many ranks there are few different values in float16, and a rank adds little to the mean.
        assert share > (0.9 if ranks <= 8 else 0.3), name


@pytest.mark.parametrize("ranks", [3, 5, 6, 7])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_rounded_reciprocal_is_no_mistake(dtype, ranks):
    """Horovod multiplies by 1/ranks; float16 before it sums."""
    values = KnownValues(dtype, ranks, seed=1)
    kind = np.dtype(dtype).type
    sent = [values.sent(rank, 0) for rank in range(ranks)]
    reciprocal = kind(1 / ranks)
    if dtype == "float32":
        found = sum(sent[1:], sent[0]) * reciprocal
    else:
        found = sum((each * reciprocal for each in sent[1:]), sent[0] * reciprocal)
    assert found.dtype == dtype
    assert not values.differing(found, values.mean(0)).size


def test_one_element_is_noticed():
    values = KnownValues("float32", 2, seed=0)
    found = values.mean(1)
    found[77] = np.nextafter(found[77], np.float32(np.inf))
    assert values.differing(found, values.mean(1)).tolist() == [77]


def test_more_ranks_than_values_can_tell_apart():
    with pytest.raises(ValueError, match="5000 ranks"):
        KnownValues("float16", 5000, 0)
