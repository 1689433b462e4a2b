"""bench/step.py: its counting, its ratios, and workers that fail, hang or go on in the background
(the whole: test_quick.py)."""

from __future__ import annotations

import os
import sys
import time

import pytest

from base import machine
from base.tables import terminal
from bench import workers
from bench.harness import in_turns, ratios, spread
from bench.step import CONTESTANTS, OURS, PRODUCTS, plan_sessions, summarize, table
from bench.work import BATCHES, Work, gflop, products
from bench.workers import Contestants, Worker, WorkerError, find_torch_python
from tests.processes import LIMIT, is_alive, until

BASE, LARGE = Work("base", 128, "float32"), Work("large", 128, "float32")
SHORT = BATCHES[128]
LONG_WORK = Work("base", 512, "bfloat16")


def worker(code: str, name: str = "w") -> Worker:
    code = "import json, os, subprocess, sys, time\nfrom bench.workers import serve\n" + code
    return Worker(name, [sys.executable, "-c", code], os.environ)


# what is counted


def test_gflop_of_bert_base():
    """24 L U^2 for a token in the layers, 4 L N U in the attention, 2 U (U + V) in the masked-LM head; twice
    as much in the backward pass."""
    layers, scores = 24 * 12 * 768**2 * 1024, 4 * 12 * 128 * 768 * 1024
    head = 2 * 768 * (768 + 30522)
    small = 8 * (2 * 768**2 + 2 * 2 * 768)
    for decoded in (20, 128):
        expected = 3 * (layers + scores + 8 * decoded * head + small) / 1e9
        assert BASE.gflop(decoded) == pytest.approx(expected, rel=1e-12)
    # Scoring every position is a fifth more work, the top layer that ends with what is needed 4% less.
    assert BASE.gflop(128) / BASE.gflop() == pytest.approx(1.22, abs=0.01)
    saved = 3 * 2 * 9 * 768**2 * 8 * (128 - SHORT.needed) / 1e9
    assert BASE.gflop() - BASE.gflop(top=SHORT.needed) == pytest.approx(saved)


def test_products_are_the_step_without_those_inside_the_attention():
    for work, top in ((BASE, None), (LARGE, 21), (LONG_WORK, 81)):
        units, (sequences, length, _) = work.config.units, work.batch
        attention = 3 * work.config.layers * 4 * sequences * length**2 * units / 1e9
        assert gflop(products(work, top)) == pytest.approx(work.gflop(top=top) - attention, rel=1e-12)


# who runs together

NEED = 10_852_351_718  # bytes of a contestant with BERT-large


@pytest.mark.parametrize(
    "keys, available, sessions",
    [
        ([*CONTESTANTS], 100, [[*CONTESTANTS]]),
        # Where only some fit, each meets ours; where no two fit, they take turns.
        ([OURS, "torch", "gluonnlp", PRODUCTS], 3.1, [[OURS, "torch", "gluonnlp"], [OURS, PRODUCTS]]),
        ([OURS, "torch"], 1.2, [[OURS], ["torch"]]),
        (["torch"], 1.2, [["torch"]]),
    ],
)
def test_who_runs_together(keys, available, sessions):
    assert plan_sessions(keys, LARGE, available * NEED) == sessions


def test_what_does_not_fit_is_rejected():
    with pytest.raises(ValueError, match="GiB"):
        plan_sessions([OURS, "torch"], LARGE, 0.99 * NEED)


# numbers


def test_spread_is_median_and_quartiles():
    assert spread([5, 1, 4, 2, 3]) == (3, 2, 4)
    assert spread([7.0]) == (7, 7, 7)


def test_ratios_are_taken_within_a_round():
    """A machine that is half as fast in the second round changes no ratio."""
    rounds = [{"a": 2.0, "b": 1.0}, {"a": 4.0, "b": 2.0}, {"a": 3.0}]
    assert ratios(rounds, "a", "b") == [2, 2]


def test_summary_and_table():
    rounds = [{OURS: 1.0, "torch": 2.0, PRODUCTS: 0.8}, {OURS: 2.0, "torch": 4.0, PRODUCTS: 1.6}]
    facts = {key: {"gflop": gflop} for key, gflop in ((OURS, 100.0), ("torch", 125.0), ("gluonnlp", 100.0))}
    found = summarize(rounds, {**facts, PRODUCTS: {"gflop": 90.0, "square_gflops": 200.0}}, 1024)
    contestants = found["contestants"]
    assert set(contestants) == {OURS, "torch", PRODUCTS}
    assert contestants["torch"]["to_ours"]["median"] == 2
    assert contestants["torch"]["to_ours_per_flop"] == pytest.approx(1.6)
    assert contestants[OURS]["tokens_per_s"] == pytest.approx(1024 / 1.5)
    assert contestants[OURS]["of_peak"] == pytest.approx(100 / 1.5 / 200)
    assert found["outside_products"]["median"] == pytest.approx(0.2)
    rest = {"rounds": 2, "others": 0.01, "stolen": 0.0, "idle": 0.0}
    text = terminal(table({"work": str(LONG_WORK), **rest, **found, "left_out": {"gluonnlp": "ended\nwhy"}}))
    assert text.startswith("base, 2 x 512 tokens, bfloat16\n")
    assert "2.00 (2.00 to 2.00)" in text and "(33%)" in text and "GluonNLP: ended why" in text
    assert "20% of our step" in text


# workers


def test_a_worker_takes_steps_and_says_what_it_held():
    code = """
def set_up():
    print("a library talks")
    def step():
        time.sleep(0.02)
        print("and talks")
        return lambda: {"loss": 1.5}
    return step, {"gflop": 2}
serve(set_up)
"""
    with worker(code) as one:
        assert one.wait_until_ready() == {"gflop": 2}
        answers = [one.ask("step") for _ in range(3)]
        assert all(0.02 <= answer["seconds"] < LIMIT and answer["loss"] == 1.5 for answer in answers)
        time.sleep(0.3)
        end = one.ask("end")
        assert 1e6 < end["peak_bytes"] < 1e9
        assert end["waited_s"] >= 0.3 and end["waited_cpu_s"] <= 0.02  # it does not spin while it waits


@pytest.mark.parametrize(
    "code, said",
    [
        ("raise ValueError('broken')", "(?s)w ended with code 1.*broken"),
        ("os.kill(os.getpid(), 9)", "w ended by signal 9: is the memory exhausted"),
        ("time.sleep(60)", "w did not answer within 1 s"),
    ],
)
def test_failures_are_named(code, said):
    with worker(code) as one, pytest.raises(WorkerError, match=said):
        one.wait_until_ready(1 if "sleep" in code else LIMIT)


def test_a_worker_that_dies_between_steps_is_named():
    with worker("serve(lambda: (lambda: os._exit(3), {}))") as one:
        one.wait_until_ready()
        for _ in range(2):  # the second time it is gone already
            with pytest.raises(WorkerError, match="w ended with code 3"):
                one.ask("step")


def test_a_contestant_that_fails_is_left_out():
    """The others go on; what a loss that is no number took is no figure."""
    steps = {
        "sound": "(lambda: {'loss': 1.5})",
        "dies": "os._exit(3)",
        "diverges": "(lambda: {'loss': float('nan')})",
    }
    with Contestants() as running:
        for key, step in steps.items():
            running.add(key, worker(f"serve(lambda: (lambda: {step}, {{}}))"))
        running.start("torch", "torch", workers.TORCH, [])  # there is no interpreter for it
        assert running.keys == list(steps) and not running.failed
        unable = "from bench.workers import Unsupported\ndef f(): raise Unsupported('no')\nserve(f)"
        running.add("unable", worker(unable))
        assert running.left_out == {"unable": "no"} and not running.failed
        assert in_turns(running.keys, 1) == ["dies", "diverges", "sound"]
        answers = {key: running.step(key) for key in running.keys}
        assert answers["sound"]["loss"] == 1.5 and answers["dies"] is answers["diverges"] is None
        assert running.keys == ["sound"] and running.failed and running.step("dies") is None
        assert "ended with code 3" in running.left_out["dies"] and "nan" in running.left_out["diverges"]
        running.end()
        assert running.facts["sound"]["peak_bytes"] > 1e6


def test_nothing_is_left_of_a_worker():
    code = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
serve(lambda: (lambda: time.sleep(60), {"child": child.pid}))
"""
    with worker(code) as one:
        pid = one.wait_until_ready()["child"]
        assert os.path.exists(f"/proc/{pid}")
        with pytest.raises(WorkerError, match="did not answer"):
            one.ask("step", 0.2)
    until(lambda: not is_alive(pid))


# environment


def test_the_interpreter_with_torch(tmp_path):
    assert find_torch_python(None, {}, tmp_path) is None
    own = tmp_path / ".venv-torch" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    assert find_torch_python(None, {}, tmp_path) == str(own)
    other = os.path.join(sys.prefix, "bin", "python")
    assert find_torch_python(None, {"TORCH_PYTHON": other}, tmp_path) == other
    assert find_torch_python(str(own), {"TORCH_PYTHON": other}, tmp_path) == str(own)
    with pytest.raises(ValueError, match="--torch_python .*no such program"):
        find_torch_python("no/python", {}, tmp_path)


def test_the_machine_is_described(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nmodel name\t: Chip 9\nflags\t\t: fpu avx2 amx_bf16\n\nprocessor : 1\n")
    found = machine.describe(tmp_path, cpuinfo)
    assert found["cpu"] == "Chip 9" and found["isa"] == ["avx2", "amx_bf16"] and found["native_bf16"]
    assert found["cores"] >= 1 and found["memory_gib"] > 0.5 and found["commit"] == ""
    assert "Chip 9" in machine.line(found)
    assert not machine.describe(tmp_path, tmp_path / "none")["native_bf16"]
