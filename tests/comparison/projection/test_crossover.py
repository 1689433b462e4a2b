"""Crossover, from how many servers on BytePS is faster: against a search of every number, and the picture."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from compare import main
from comparison.backends import BACKENDS
from comparison.options import parse_options
from comparison.projection import crossover
from comparison.projection.command import plan_of
from comparison.projection.crossover import RATES, counts, crossing, draw
from comparison.projection.model import COLOCATED, SEPARATE, BytePS, FlatRing, HierarchicalRing, project

SMALL = "--gpus_per_host 2 --batch_size 16 --cycle_ms 0"


def plan(words: str):
    return plan_of(parse_options(["--project", *words.split()], BACKENDS))


def searched(plan, hosts, gbps):
    """Fewest servers and the ratio of the steps, by simulating all numbers whatever the bytes say."""
    cluster = replace(plan.cluster, inter_gbps=gbps)

    def step_s(strategy):
        return project(plan.workload, strategy, cluster, hosts * cluster.gpus_per_host).step_s

    ring_s = min(step_s(FlatRing()), step_s(HierarchicalRing()))
    for servers in range(2 * hosts + 1):
        byteps = BytePS(servers, SEPARATE) if servers else BytePS(hosts, COLOCATED)
        if ring_s / step_s(byteps) > 1.05:
            return servers, ring_s / step_s(byteps)
    return None, None


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        ("--model bert_2_128_2 --compute_s 0.0001 --inter_latency_us 300", {"never", "beside"}),
        (
            "--model bert_4_256_4 --compute_s 0.004 --overlap none --partition_bytes 1000000",
            {"never", "beside", "apart"},
        ),
        ("--model bert_4_256_4 --compute_s 0.004 --partition_bytes 200000", {"never", "beside", "apart"}),
    ],
)
def test_the_fewest_servers_are_those_of_a_search(words, kinds):
    made = plan(f"{SMALL} {words}")
    answers = set()
    for hosts in (2, 3, 4):
        for gbps in (5, 25, 100):
            found = crossing(made, hosts, gbps)
            servers, times = searched(made, hosts, gbps)
            assert found.servers == servers, (hosts, gbps)
            assert found.times == (times and pytest.approx(times, rel=1e-9))
            answers.add("never" if servers is None else "apart" if servers else "beside")
    assert answers == kinds


def test_numbers_that_are_tried():
    assert counts(2) == [1, 2, 3, 4] and counts(8) == [*range(1, 17)]
    assert counts(64) == [*range(8, 129, 8)]


def test_the_command(tmp_path, capsys, monkeypatch):
    hosts = (2, 4, 8)
    monkeypatch.setattr(crossover, "HOSTS", hosts)
    words = f"--project --crossover {SMALL} --model bert_4_256_4 --compute_s 0.004 --inter_gbps 5 --gpus 2"
    words += " --partition_bytes 1000000"
    assert main([*words.split(), "--output", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "projection.json").read_text("utf-8"))["crossover"]
    assert [(each["gbps"], each["hosts"]) for each in found] == [
        (gbps, each) for gbps in (5, *RATES) for each in hosts
    ]
    made = plan(words.partition(" ")[2])
    four = crossing(made, 4, 5)
    assert found[1] == four._asdict() and four.words[:2] == ["n", "4"]
    text = (tmp_path / "projection.md").read_text("utf-8")
    assert "](crossover.png)" in text and (tmp_path / "crossover.png").read_bytes()[:4] == b"\x89PNG"
    assert ", ".join(four.words) in text and ", ".join(four.words) in capsys.readouterr().out
    figure = draw({made.model: {5: [four]}}, made)
    (cell,) = [each for each in figure.axes[0].texts if each.get_text() == "\n".join(four.words)]
    assert cell.get_position() == (0, 0)
