"""Numbers that give BytePS's servers equal shares. tests/native has what BytePS itself makes of them."""

from __future__ import annotations

import random

import pytest

from base.errors import InputError
from bert.configuration import named_config
from comm.byteps.environment import read_place, read_servers
from comm.numbering import Servers, even_numbers, partition_bytes_of, server_of, share_apart
from comparison.projection.workload import bert_parts
from tests.comm.byteps.test_environment import WORKER


@pytest.mark.parametrize("count, most", [(2, 1.01), (5, 1.02), (16, 1.05), (32, 1.25)])
def test_no_server_has_much_more_than_the_mean(count, most):
    """BERT-base's gradients in float16; with numbers in a row the fullest of 16 has 1.9 times the mean."""
    parts = bert_parts(named_config("bert_12_768_12"))
    sizes = [2 * size for part in reversed(parts) for size in reversed(part.gradients)]
    servers = Servers(count, count, 0, 4 << 20)
    numbers = even_numbers(sizes, servers, 7)
    assert len(set(numbers)) == len(sizes) and min(numbers) >= 7 and max(numbers) < 7 + len(sizes) + 128

    def fullest(chosen):
        loads = [0] * count
        for number, nbytes in zip(chosen, sizes):
            for part, begin in enumerate(range(0, nbytes, 4 << 20)):
                loads[server_of(number, part, servers)] += min(4 << 20, nbytes - begin)
        return max(loads) / (sum(loads) / count)

    assert fullest(numbers) <= most
    assert numbers == even_numbers(sizes, servers, 7), "all ranks choose the same"
    loads, chunks, first = [0.0] * count, [], 7
    for begin in range(0, len(sizes), 8):  # as a broadcast declares them
        chunks += even_numbers(sizes[begin : begin + 8], servers, first, loads)
        first = max(chunks) + 1
    assert fullest(chunks) == pytest.approx(max(loads) / (sum(loads) / count))
    assert fullest(chunks) <= {16: 1.3, 32: 1.8}.get(count, 1.1)
    if count == 16:
        assert fullest(range(7, 7 + len(sizes))) > 1.4


@pytest.mark.parametrize("model", ["bert_12_768_12", "bert_24_1024_16"])
@pytest.mark.parametrize("count, most", [(16, 1.02), (64, 1.19), (128, 1.38)])
def test_partitions_are_small_enough_for_the_servers(model, count, most):
    """At 4 MiB the fullest of 128 servers has 1.6 and 2.4 times the mean of BERT's gradients in float16."""
    size = partition_bytes_of(count)
    assert 512 << 10 <= size <= 4 << 20 and size % 4096 == 0
    sizes = [2 * each for part in bert_parts(named_config(model)) for each in part.gradients]
    loads = [0.0] * count
    even_numbers(sizes, Servers(count, count, 0, size), 1, loads)
    assert max(loads) <= most * sum(sizes) / count
    assert partition_bytes_of(1) == 4 << 20, "as a compressor's pieces need it"


def test_servers_apart_take_the_share_that_mixing_gives_them():
    """OSDI 2020, section 4.1, up to BytePS's rounding to 1/101; the rest is shared by the servers beside the
    workers. With k = h there is none."""
    for workers, apart in ((2, 1), (4, 2), (8, 4), (8, 8)):
        servers = Servers(workers, apart, workers, 4096)
        places = [server_of(array, part, servers) for array in range(300) for part in range(30)]
        share = share_apart(servers)
        assert share == pytest.approx(2 * apart * (workers - 1) / (workers**2 + apart * workers - 2 * apart))
        assert sum(place < apart for place in places) / len(places) == pytest.approx(share, abs=0.03)
        assert set(places) == set(range(apart if apart == workers else workers + apart))
        generator = random.Random(workers)
        sizes = [generator.randrange(4000, 60_000) for _ in range(60)]
        loads = [0] * (workers + apart)
        for number, nbytes in zip(even_numbers(sizes, servers, 1), sizes):
            for part, begin in enumerate(range(0, nbytes, 4096)):
                loads[server_of(number, part, servers)] += min(4096, nbytes - begin)
        for own, share_of_one in ((loads[:apart], share / apart), (loads[apart:], (1 - share) / workers)):
            assert max(own) <= 1.03 * share_of_one * sum(loads) + 4096


def test_the_users_own_hash_is_left_to_the_user():
    own = {**WORKER, "DMLC_NUM_WORKER": "2", "DMLC_WORKER_ID": "0", "DMLC_NUM_SERVER": "3"}
    own.update(BYTEPS_LOCAL_RANK="0", BYTEPS_LOCAL_SIZE="3", BYTEPS_PARTITION_BYTES="12289")

    def servers(**more):
        return read_servers({**own, **more}, read_place({**own, **more}))

    assert servers() == Servers(2, 3, 0, 2 * 12288)
    assert servers(BYTEPS_ENABLE_MIXED_MODE="1") == Servers(2, 1, 2, 2 * 12288)
    assert servers(BYTEPS_KEY_HASH_FN="naive") is None
    assert servers(BYTEPS_ENABLE_MIXED_MODE="1", BYTEPS_MIXED_MODE_BOUND="211") is None
    assert servers(DMLC_NUM_WORKER="1") is None
    assert servers(BYTEPS_ENABLE_MIXED_MODE="1", DMLC_NUM_SERVER="2") is None
    with pytest.raises(InputError, match="BYTEPS_PARTITION_BYTES=4MB"):
        servers(BYTEPS_PARTITION_BYTES="4MB")
