"""Coordinates of ranks against the published orders, written out by hand, and the sizes that are rejected."""

from __future__ import annotations

import pytest

from base.errors import InputError
from base.launchers import announced_sizes
from training.pipeline.placement import (
    INTER_FIRST,
    INTRA_FIRST,
    PLACEMENTS,
    Coordinates,
    Host,
    coordinates_of,
    hosts_of_ranks,
    placement_warnings,
    replica_groups,
)


@pytest.mark.parametrize("hosts, gpus, stages", [(2, 2, 2), (3, 3, 3), (4, 4, 4), (2, 8, 4), (3, 4, 2)])
def test_the_formulas_of_the_issue(hosts: int, gpus: int, stages: int) -> None:
    """r = node G + gpu, stage = r mod S; k = gpu N + node."""
    slots = [gpus] * hosts
    for node in range(hosts):
        for gpu in range(gpus):
            rank = node * gpus + gpu
            for placement, k in ((INTRA_FIRST, rank), (INTER_FIRST, gpu * hosts + node)):
                expected = Coordinates(k // stages, hosts * gpus // stages, k % stages, stages)
                assert coordinates_of(rank, slots, stages, placement) == expected


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("slots", [[1], [4], [2, 2], [3, 1], [1, 2, 3], [5, 1, 2]])
def test_every_rank_has_one_place(slots: list[int], placement: str) -> None:
    size = sum(slots)
    for stages in (each for each in range(1, size + 1) if size % each == 0):
        replicas = replica_groups(slots, stages, placement)
        assert sorted(rank for group in replicas for rank in group) == list(range(size))
        for rank in range(size):
            found = coordinates_of(rank, slots, stages, placement)
            assert replicas[found.data_rank][found.stage] == rank
            assert (found.data_size, found.stages) == (len(replicas), stages)
            assert found.first == (found.stage == 0) and found.last == (found.stage == stages - 1)


def test_unequal_hosts_in_inter_first_are_passed_over_when_they_are_full() -> None:
    assert replica_groups([3, 1], 2, INTER_FIRST) == ((0, 3), (1, 2))
    assert replica_groups([1, 3], 2, INTER_FIRST) == ((0, 1), (2, 3))


def test_hosts_follow_from_the_ranks() -> None:
    ranks = [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)]
    assert hosts_of_ranks(ranks) == [("a", 2), ("b", 3)]
    # Containers and namespaces may all have one name.
    assert hosts_of_ranks([("x", 0), ("x", 1), ("x", 0)]) == [("x", 2), ("x", 1)]


@pytest.mark.parametrize(
    "ranks",
    [
        [("a", 0), ("b", 0), ("a", 1), ("b", 1)],  # --map-by node
        [("x", 0), ("x", 0), ("x", 1), ("x", 1)],
        [("a", 0), ("b", 1)],
        [("a", 1), ("a", 0)],
    ],
)
def test_ranks_in_another_order_are_rejected(ranks: list[tuple[str, int]]) -> None:
    with pytest.raises(InputError, match="--map-by slot"):
        hosts_of_ranks(ranks)


def test_even_placements_have_no_warning() -> None:
    for slots, stages in (([2, 2], 2), ([4, 4], 2), ([3, 3, 3], 3), ([8], 4), ([1, 1], 2)):
        hosts = [Host(f"node-{index}", count) for index, count in enumerate(slots)]
        for placement in PLACEMENTS:
            assert placement_warnings(hosts, stages, placement) == []


def test_warnings_name_the_slow_links() -> None:
    hosts = [Host("a", 3), Host("b", 1)]
    first, second = placement_warnings(hosts, 2, INTRA_FIRST)
    assert "hosts of 3 and 1 ranks" in first
    assert "between hosts in replica 1, stage 0 to 1 (rank 2 on a to rank 3 on b)" in first
    assert "gradients of stage 1 are averaged between hosts" in second
    (only,) = placement_warnings([Host("a", 3), Host("b", 3)], 2, INTRA_FIRST)
    assert "3 ranks a host, 2 stages" in only
    assert "replica 1, stage 0 to 1 (rank 2 on a to rank 3 on b)" in only
    (only, averages) = placement_warnings(hosts, 2, INTER_FIRST)
    assert "replica 0, stage 0 to 1 (rank 0 on a to rank 3 on b)" in only and "stage 1" in averages
    many = placement_warnings([Host(f"n{index}", 3) for index in range(16)], 2, INTRA_FIRST)
    assert "and 5 more" in many[0]


@pytest.mark.parametrize(
    "environ, sizes",
    [
        ({}, []),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, [4]),
        ({"PMIX_RANK": "1", "SLURM_STEP_NUM_TASKS": "6", "SLURM_NTASKS": "9"}, [6]),
        ({"SLURM_STEP_NUM_TASKS": "1", "PMIX_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, [4]),
        ({"SLURM_STEP_NUM_TASKS": "6", "SLURM_PROCID": "1"}, []),
        ({"HOROVOD_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "x"}, [2]),
    ],
)
def test_the_launcher_announces_the_size(environ: dict[str, str], sizes: list[int]) -> None:
    assert list(announced_sizes(environ).values()) == sizes
