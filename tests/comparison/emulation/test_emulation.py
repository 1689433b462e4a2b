"""--emulate: options, scale and report; links, exchanges and idle steps of emulated hosts against arithmetic;
an emulation that is killed. Those with hosts need root."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from base.errors import InputError
from base.processes import running
from comparison.backends import BACKENDS
from comparison.campaign import Store
from comparison.emulation import network
from comparison.emulation.command import MOST_TAKEN, MOST_WAITED, emulate, measured
from comparison.emulation.network import PAYLOAD, Layout, Process, address
from comparison.emulation.plan import (
    TRACE,
    Group,
    Scale,
    Setting,
    cluster_of,
    layout_of,
    message_workload,
    replay_of,
    traced_workload,
)
from comparison.emulation.report import figures_of, report_of
from comparison.options import parse_options
from comparison.projection.clusters import P3DN
from comparison.projection.model import FlatRing, project
from comparison.report import as_json
from tests.comparison.synthetic import FACTS
from tests.pages import samples_behind
from tests.processes import ROOT, run_command, until
from training.profiling.trace import Operator, Step, Trace, write_trace

LACKING = network.lacking()
needs_hosts = pytest.mark.skipif(LACKING is not None, reason=f"emulated hosts: {LACKING}")
TRIES = 5  # the best counts: other programs take processors from the emulation


def options_of(*words):
    return parse_options(["--emulate", *map(str, words)], BACKENDS)


# without hosts


def test_settings_are_every_combination():
    options = options_of("--hosts", 2, 4, "--rates", 10, 100, "--work", "1MB", "bert_2_128_2")
    assert len(options.settings) == 2 * 2 * 2 * (2 + 5)
    assert [each.contender for each in options.settings[:7]] == [
        "hvd_mpi", "hvd_gloo", "byteps colocated:n", "byteps separate:n/2", "byteps separate:n",
        "byteps separate:2n", "byteps mixed:n/2",
    ]  # fmt: skip
    assert len({each.name for each in options.settings}) == len(options.settings)
    # One host is computed alone.
    assert options_of("--hosts", 1, 2).settings == options_of("--hosts", 2).settings
    # Only BytePS has this compression.
    options = options_of("--compressions", "onebit", "--hosts", 2, "--server_sets", "separate:3")
    assert {each.contender for each in options.settings} == {"byteps separate:3"}


@pytest.mark.parametrize(
    "words, said",
    [
        (["--hosts", "1"], "--hosts 1: has nothing to exchange; add 2 or more"),
        (["--hosts", "2", "2"], "--hosts: 2 is named twice"),
        (["--server_sets", "beside:2"], "--server_sets beside:2: write it like separate:4"),
        (["--server_sets", "separate:n/0"], "--server_sets separate:n/0: write it like separate:4"),
        (["--hosts", "2", "--server_sets", "separate:n/4"], "1/2 servers at --hosts 2; give a whole number"),
        (["--hosts", "2", "--server_sets", "mixed:3"], "at most as many extra servers as workers"),
        (["--hosts", "2", "--server_sets", "separate:63"], "at most 64 hosts in all"),
        (["--hosts", "40", "--server_sets", "colocated:n", "colocated:2n"], "colocated:2n: at most 64 hosts"),
        (["--backends", "byteps_local"], "byteps_local: --emulate takes hvd_mpi, hvd_gloo, byteps"),
        (["--backends", "hvd_mpi", "--compressions", "topk"], "--compressions topk: need --backends byteps"),
        (["--model", "bert_12_768_12"], "--model: is not for --emulate"),
        (["--gpus", "8"], "--gpus: is an option of --project"),
        (["--work", "foo"], "--work foo: write it like 64KB"),
        (["--work", "bert_base"], "--work bert_base: use bert_12_768_12"),
        (["--work", "1MB", "--accumulations", "2"], "--accumulations 2: 1MB is one exchange of gradients"),
        (["--trace", "/nowhere"], "/nowhere: cannot be read"),
        (["--work", "bert_2_128_2", "--cluster", "university"], "float16: no speed of a GPU is known"),
    ],
)  # fmt: skip
def test_bad_options_are_said_before_anything_starts(monkeypatch, tmp_path, words, said):
    monkeypatch.setattr(network, "lacking", None)
    with pytest.raises(InputError) as error:
        emulate(options_of("--output", tmp_path / "out", *words))
    assert said in str(error.value) and not (tmp_path / "out").exists()


def test_what_is_missing_is_said_before_anything_starts(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert network.lacking() == "needs root, for network namespaces"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert network.lacking() == "needs the command ip: install iproute2"
    for tool in ("ip", "nsenter", "mount"):
        (tmp_path / tool).symlink_to("/bin/true")
    assert network.lacking() == "needs the command tc: install iproute2"


def test_a_dry_run_needs_no_root_and_leaves_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    words = ["--hosts", "2", "--rates", "10", "--work", "1MB", "--backends", "hvd_mpi", "--repeats", "5"]
    words += ["--output", tmp_path / "out"]
    with pytest.raises(InputError, match="^--emulate needs root, for network namespaces$"):
        emulate(options_of(*words))
    assert emulate(options_of(*words, "--dry_run")) == 0
    said = capsys.readouterr().out
    assert "would not start here: --emulate needs root" in said and not list(tmp_path.iterdir())
    assert "5 launches for 1 settings" in said and "network.py" in said and "\nabout 1 min 40 s" in said


def setting_of(backend="hvd_gloo", servers="", hosts=4, gbps=10.0, work="1MB", dtype="float32"):
    return Setting(backend, servers, Group(hosts, gbps, work, dtype, 1, "none"))


def test_sizes_times_and_rates_are_scaled(tmp_path):
    scale = Scale(100, 10)
    assert scale.bits_per_s(25) == 25e9 / 1000
    workload = message_workload("3x4MB", "float32")
    plan = replay_of(setting_of(), workload, scale, 0, 60.0)
    assert plan["elements"] == [round(2**20 / 100)] * 3 and plan["ready_s"] == [0.0] * 3
    layout = layout_of(setting_of(), BACKENDS["hvd_gloo"], P3DN, scale, tmp_path)
    assert layout.bits_per_s == 10e6 and layout.hosts == 4
    environ = layout.processes[0].environ
    assert environ["HOROVOD_CYCLE_TIME"] == "10"  # ms, of 1
    assert environ["HOROVOD_FUSION_THRESHOLD"] == str(round(1.28 * 2**20))
    assert environ["BYTEPS_PARTITION_BYTES"] == "45056"  # 4 MiB, in pages

    # A partition that would be less than a page is one, in the projection too.
    cluster = cluster_of(P3DN, setting_of(), Scale(10_000, 1))
    assert cluster.partition_bytes == 4096 * 10_000 and cluster.network_efficiency == PAYLOAD


@pytest.mark.parametrize(
    "servers, hosts, places",
    [("colocated:n", 3, [0, 1, 2]), ("colocated:2n", 3, [0, 1, 2] * 2), ("separate:n/2", 4, [4, 5]),
     ("separate:2", 3, [3, 4]), ("mixed:2", 3, [3, 4, 0, 1, 2])],
)  # fmt: skip
def test_places_of_servers(tmp_path, servers, hosts, places):
    setting = setting_of("byteps", servers, hosts)
    layout = layout_of(setting, BACKENDS["byteps"], P3DN, Scale(100, 10), tmp_path)
    own = [each for each in layout.processes if each.environ["DMLC_ROLE"] == "server"]
    assert [each.host for each in own] == places and not any(each.main for each in own)
    assert all(each.environ["DMLC_NODE_HOST"] == address(each.host) for each in own)
    assert {each.environ["DMLC_NUM_SERVER"] for each in layout.processes} == {str(len(places))}
    assert layout.hosts == max([hosts - 1, *places]) + 1
    workers = [each for each in layout.processes if each.environ["DMLC_ROLE"] == "worker"]
    assert [each.host for each in workers] == list(range(hosts)) and all(each.main for each in workers)


def trace_file(path, backward=0.2, exchanges=None):
    """Two steps of a second: half of it forward, a gradient every 2 ms from 0.5 s on, an update of 0.1 s."""
    bert = {"layers": 1, "units": 16, "heads": 1, "hidden": 64, "positions": 32, "token_types": 2}
    facts = {
        "rank": 0,
        "vocab_size": 100,
        "bert": {**bert, "activation": "erf", "epsilon": 1e-12, "tied": True},
    }
    arrays = 5 + 16 + 9 if exchanges is None else exchanges
    operators, steps = [], []
    for number in range(2):
        start = 1e6 * number
        steps.append(Step(f"step {number}", start, start + 1e6))
        operators += [
            Operator("bert_dense", "matrix products", start, start + 5e5, 0),
            Operator("_backward_bert_dense", "matrix products", start + 5e5, start + 5e5 + 1e6 * backward, 0),
            Operator("bert_lamb", "optimizer", start + 9e5, start + 1e6, 0),
        ]
        for each in range(arrays):
            at = start + 5e5 + 2e3 * each
            operators.append(Operator("horovod_allreduce", "communication", at, at + 1e5, 1))
    write_trace(str(path), Trace(facts, 0.0, steps, operators))
    return arrays


def test_ready_times_of_a_trace(tmp_path):
    path = tmp_path / "trace.json"
    arrays = trace_file(path)
    workload = traced_workload(str(path), "float32")
    messages = workload.messages()
    assert [each.ready_s for each in messages] == pytest.approx([0.5 + 2e-3 * each for each in range(arrays)])
    assert messages[-1].nbytes == 4 * 100 * 16  # the word embedding's gradient is the last
    assert workload.backward_ends_s == pytest.approx(0.7) and workload.optimizer_s == pytest.approx(0.1)
    trace_file(path, exchanges=3)
    with pytest.raises(InputError, match="step 0 has 3 exchanges of gradients, the model 30 arrays"):
        traced_workload(str(path), "float32")
    path.write_text(path.read_text().replace('"vocab_size"', '"words"'))
    with pytest.raises(InputError, match="vocab_size None, where a trace has the vocabulary's size"):
        traced_workload(str(path), "float32")


def test_launches_of_another_trace_under_the_same_name_are_not_continued(tmp_path, monkeypatch, capsys):
    path, plans = tmp_path / "trace.json", []
    monkeypatch.setattr(Store, "agree_on", lambda store, plan, repeats: plans.append(plan))
    for backward in (0.2, 0.2, 0.3):
        trace_file(path, backward)
        emulate(options_of("--hosts", 2, "--trace", path, "--output", tmp_path, "--dry_run"))
    assert plans[0] == plans[1] != plans[2]


def rank_files(directory, **changes):
    """Lines of two ranks that took a first step and three more of half a second."""
    for rank in range(2):
        lines = []
        for step in range(4):
            line = {"step": step, "seconds": 0.5 + 0.01 * rank, "wrong": None, "bits": 7}
            load = {"cpu_s": 0.05, "waited_s": 0.01, "link_bytes": 1000} if rank == 0 else {}
            changed = rank == changes.get("rank", 1) and step >= changes.get("step", 2)
            lines.append({**line, **load, **({**changes, "step": step} if changed else {})})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (directory / f"rank-{rank}.jsonl").write_text(text)


def test_what_ranks_leave(tmp_path):
    rank_files(tmp_path)
    found = measured(tmp_path, 2)
    assert found["steps"] == [0.51] * 3 and found["trouble"] is None
    assert found["waited_share"] == pytest.approx(0.02) and found["link_bytes"] == 1000
    rank_files(tmp_path, wrong="element 3 is 1 instead of 2")
    found = measured(tmp_path, 2)
    assert found["failed"] and found["trouble"] == "wrong: step 2, rank 1: element 3 is 1 instead of 2"
    rank_files(tmp_path, bits=8)
    assert measured(tmp_path, 2)["trouble"] == "wrong: step 2, the ranks have different bits"
    rank_files(tmp_path, rank=0, step=3, waited_s=1.6 * MOST_WAITED)
    found = measured(tmp_path, 2)
    assert found["trouble"] is None and len(found["steps"]) == 2 and found["left_out"] == 1
    rank_files(tmp_path, rank=0, waited_s=1.6 * MOST_WAITED)
    found = measured(tmp_path, 2)
    assert (
        found["trouble"].startswith("the processors do not carry it: a thread waited") and not found["failed"]
    )
    rank_files(tmp_path, rank=0, cpu_s=1.6 * MOST_TAKEN * os.cpu_count())
    assert measured(tmp_path, 2)["trouble"].startswith("the processors do not carry it")
    (tmp_path / "rank-1.jsonl").unlink()
    assert measured(tmp_path, 2)["trouble"] == "failed: the ranks took no step"


def launch_of(setting, repeat, step_s, trouble=None):
    values = {**setting._asdict(), "group": setting.group._asdict()}
    taken = {"cpu_share": 0.1, "waited_share": 0.01, "link_bytes": 1e5, "others": 0.0, "failed": False}
    return {"setting": values, "repeat": repeat, "steps": [step_s] * 3, "trouble": trouble, **taken}


def facts_of(scale, repeats):
    return {**FACTS, "repeats": repeats, "cluster": vars(P3DN), "scale": scale, "launches": 15}


def test_report(tmp_path):
    scale = Scale(100, 10)
    ring, servers, slow = setting_of("hvd_mpi"), setting_of("byteps", "separate:n"), setting_of("hvd_gloo")
    workload = message_workload("1MB", "float32")
    projected = {
        each: project(workload, each.strategy, cluster_of(P3DN, each, scale), 4)
        for each in (ring, servers, slow)
    }
    launches = [launch_of(ring, repeat, 0.02 + 1e-4 * repeat) for repeat in range(5)]
    launches += [launch_of(servers, repeat, 0.01 + 9e-5 * repeat) for repeat in range(5)]
    launches += [launch_of(slow, 0, 0.02, "the processors do not carry it: a thread waited")]
    figures, reasons = figures_of(projected, launches, scale)
    assert figures[ring].step_s.median == pytest.approx(0.0202 / 10)
    ring_s = 1.5 * 2**20 / (10e9 / 8 * PAYLOAD)  # 2 (n - 1) / n of the bytes
    assert figures[ring].projected_s == pytest.approx(ring_s, rel=0.06)  # with latencies
    assert figures[ring].off == pytest.approx(0.0202 / 10 / figures[ring].projected_s - 1)
    assert figures[ring].link_to_formula == pytest.approx(1e7 * PAYLOAD / (1.5 * 2**20))
    assert slow not in figures and reasons[slow].startswith("the processors")
    report = report_of(facts_of(scale, 5), projected, launches, complete=False)
    assert "Partial: 11 of 15 launches are done" in report.markdown
    assert "Scale: 1/100 of the bytes, 10 times the time, 1/1000 the rate." in report.markdown
    assert "BytePS separate:n is faster" in report.markdown
    assert "1 of 3 settings: more than the processors carry." in report.markdown
    written = [path.suffix for path in report.write(tmp_path) if path.stem == "emulation"]
    assert written == [".md", ".html", ".json", ".png"]
    ((verdict, samples),) = samples_behind((tmp_path / "emulation.html").read_text())
    assert verdict == "BytePS separate:n is faster" and len(samples) == 5
    assert samples[3] == ["4", "0.00203", "0.001027", "0.5059"]
    written = json.loads((tmp_path / "emulation.json").read_text())
    assert [row["reason"] is None for row in written["figures"]] == [True, True, False]
    assert written["scale"] == {"sizes": 100, "times": 10}


def test_backends_by_hosts():
    """Matrix made of launches' records as they are on disk: against a step of 4 ms of computing alone."""
    scale, work = Scale(100, 10), message_workload("1MB", "float32")
    work = replace(work, compute_s=0.003, optimizer_s=0.001, sequences=64, length=128)
    steps = [0.05, 0.08, 0.04, None]  # of the emulation; the last was not measured
    settings = [
        setting_of(*each, hosts, work="bert_2_128_2")
        for each in (("hvd_mpi", ""), ("byteps", "separate:n/2"))
        for hosts in (2, 8)
    ]
    traced = setting_of("hvd_mpi", "", 2, work=TRACE)
    measured_s = zip([*settings, traced], [*steps, 0.05])
    made = [launch_of(setting, 0, step_s) for setting, step_s in measured_s if step_s]
    launches = json.loads(json.dumps(made))
    projected = {
        each: project(work, each.strategy, cluster_of(P3DN, each, scale), each.group.hosts)
        for each in [*settings, traced]
    }
    alone = message_workload("1MB", "float32")
    projected[setting_of("hvd_mpi", work="1MB")] = project(alone, FlatRing(), P3DN, 4 * 8)
    text = report_of(facts_of(scale, 1), projected, launches, complete=True).markdown
    matrices = text.split("### Scaling: ")[1:]
    assert [each.splitlines()[0] for each in matrices] == [
        "bert_2_128_2, gradients in float32, 10 Gbit/s: tokens/s, speed-up, expansion",
        "trace, gradients in float32, 10 Gbit/s: speed-up, expansion",
    ]
    assert matrices[0].splitlines()[2:6] == [
        "| backend | 1 host | 2 hosts | 8 hosts |",
        "| --- | ---: | ---: | ---: |",
        "| Horovod, MPI | 2,048,000, 1.00, 1.000 | 3,276,800, 1.60, 0.800 | 8,192,000, 4.00, 0.500 |",
        "| BytePS separate:n/2 | 2,048,000, 1.00, 1.000 | 4,096,000, 2.00, 1.000 | – |",
    ]
    assert "| Horovod, MPI | 1.00, 1.000 | 1.60, 0.800 |" in matrices[1]


@pytest.mark.alone
def test_an_idle_replay_takes_the_time_of_the_trace(tmp_path):
    """One rank, which exchanges nothing: within 1%."""
    path = tmp_path / "trace.json"
    trace_file(path)
    workload = traced_workload(str(path), "float32")
    plan = {**replay_of(setting_of(), workload, Scale(10, 1), 0, 60.0), "backend": "local", "ranks": 1}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    script = str(ROOT / "comparison" / "emulation" / "rank.py")
    run_command([sys.executable, script, str(tmp_path / "plan.json"), str(tmp_path)], cwd=ROOT).check()
    lines = [json.loads(line) for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]
    best = min(line["seconds"] for line in lines)
    assert best == pytest.approx(0.7 + 0.1, rel=0.01)


# with hosts

_RECEIVE = """
import socket, time
server = socket.create_server(("10.77.0.2", 5001))
connection, _ = server.accept()
count, begin = len(connection.recv(1 << 20)), time.perf_counter()
while data := connection.recv(1 << 20):
    count += len(data)
print(8 * count / (time.perf_counter() - begin))
"""
_SEND = """
import socket, sys, time
while True:
    try:
        connection = socket.create_connection(("10.77.0.2", 5001))
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
for _ in range(int(sys.argv[1]) >> 16):
    connection.sendall(bytes(1 << 16))
connection.close()
"""


def layout_file(path, rate, *processes):
    path.write_text(as_json(Layout(2, rate, processes)))
    return network.command(path)


@needs_hosts
@pytest.mark.alone
@pytest.mark.parametrize("rate", [2e7, 1e8])
def test_one_flow_gets_the_rate_of_the_link(tmp_path, rate):
    """Within 3%."""
    words = [sys.executable, "-c"]
    receive, send = [*words, _RECEIVE], [*words, _SEND, str(int(rate / 8 * 4))]
    command = layout_file(tmp_path / "plan", rate, Process(1, receive, {}), Process(0, send, {}))
    rates = []
    for _ in range(TRIES):
        result = run_command(command)
        result.check()
        rates.append(float(result.stdout))
        if abs(rates[-1] / rate - 1) < 0.03:
            return
    raise AssertionError(f"{rates} bits a second over a link of {rate}")


@needs_hosts
def test_the_first_failure_ends_all(tmp_path):
    sleeping = Process(0, ["sleep", "1000"], {})
    failing = Process(1, ["sh", "-c", "hostname; exit 7"], {})
    result = run_command(layout_file(tmp_path / "plan", 1e8, sleeping, failing))
    assert result.returncode == 7 and result.stdout == "emulated2\n"
    assert "sh -c hostname; exit 7 ... on host 2 ended with code 7" in result.stderr


@needs_hosts
@pytest.mark.alone
@pytest.mark.slow
def test_an_exchange_takes_the_time_of_the_formula(tmp_path):
    """256 MB between two hosts over all backends: within 5%, the fastest of a launch's steps: other programs
    slow some. Separate servers take half of it more at most, for windows that are large on this scale;
    without pulling while it pushes it was all of it. A second call repeats nothing."""
    words = ["--emulate", "--hosts", "2", "--rates", "20", "--work", "256MB", "--repeats", "1"]
    words += ["--gradient_dtypes", "float32", "--scale", "200", "10"]
    words += ["--server_sets", "colocated:n", "mixed:n/2", "separate:n"]
    command = [sys.executable, "compare.py", *words, "--output", str(tmp_path)]
    run_command(command, cwd=ROOT).check()
    written = json.loads((tmp_path / "emulation.json").read_text())
    assert written["complete"] and len(written["launches"]) == 5
    formula = 2**28 / (20e9 / 8 * PAYLOAD)
    for launch in written["launches"]:
        setting = launch["setting"]
        assert not launch["failed"], launch["trouble"]
        fastest = min(launch["steps"]) / 10
        if setting["servers"] == "separate:n":
            assert formula < fastest < 1.5 * formula
        elif setting["servers"] != "mixed:n/2":  # which divides its pieces unevenly
            assert fastest == pytest.approx(formula, rel=0.05), setting
        # 2 (n - 1) / n of the bytes, in float32 arrays of a 200th of the elements.
        assert launch["link_bytes"] * PAYLOAD == pytest.approx(2**28 / 200, rel=0.05), setting
    text = (tmp_path / "emulation.md").read_text()
    assert "Scale: 1/200 of the bytes, 10 times the time, 1/2000 the rate." in text
    assert "### 256MB, gradients in float32" in text
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "emulation").glob("*-1.json")}
    run_command(command, cwd=ROOT).check()
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "emulation").glob("*-1.json")}


@needs_hosts
@pytest.mark.alone
@pytest.mark.slow
def test_more_than_the_processors_carry_is_no_result(tmp_path):
    words = ["--hosts", "4", "--rates", "1000", "--work", "16MB", "--scale", "1", "1", "--repeats", "1"]
    words += ["--backends", "hvd_gloo", "--output", str(tmp_path)]
    code = (
        "import runpy; from comparison.emulation import plan; plan.SECONDS = 1.0;"
        " runpy.run_path('compare.py', run_name='__main__')"
    )
    run_command([sys.executable, "-c", code, "--emulate", *words], cwd=ROOT).check()
    written = json.loads((tmp_path / "emulation.json").read_text())
    assert written["outcome"] == {"code": 0, "complete": True, "failed": [], "verdicts": {}}
    row = written["figures"][0]
    assert row["reason"].startswith("the processors do not carry it") and "step_s" not in row
    assert "1 of 1 settings: more than the processors carry." in (tmp_path / "emulation.md").read_text()


def carrying(name, value):
    """Living processes that have the variable, and the network namespaces that they are in."""
    found = {each.pid for each in running() if each.variables.get(name) == value}
    return found, networks_of(found)


def networks_of(pids):
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            found.add(os.stat(f"/proc/{pid}/ns/net").st_ino)
    return found


def mounts():
    """Those at places where an emulation mounts; other tests mount elsewhere meanwhile."""
    lines = Path("/proc/mounts").read_text().splitlines()
    return [line for line in lines if line.split()[1] in ("/", "/proc", network.PRIVATE, "/etc/hosts")]


@needs_hosts
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "seconds"), [("hvd_mpi", 0.0), ("hvd_gloo", 1.5), ("byteps", 3.5), ("hvd_mpi", 7.0)]
)
def test_a_killed_emulation_leaves_nothing(tmp_path, backend, seconds):
    """SIGKILL of the command so long after its first process: as hosts are made, as ranks start, in steps."""
    name, value = "EMULATION_TEST", uuid.uuid4().hex
    words = ["--hosts", "3", "--rates", "10", "--work", "64MB", "--repeats", "9", "--output", str(tmp_path)]
    words += ["--backends", backend, "--server_sets", "separate:1"]
    mounted, links = mounts(), os.listdir("/sys/class/net")
    process = subprocess.Popen(
        [sys.executable, "compare.py", "--emulate", *words],
        cwd=ROOT, env={**os.environ, name: value}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    own = os.stat("/proc/self/ns/net").st_ino
    networks: set[int] = set()
    try:
        until(lambda: carrying(name, value)[1] - {own})
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            networks |= carrying(name, value)[1] - {own}
            time.sleep(0.1)
        networks |= carrying(name, value)[1] - {own}
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    until(lambda: not carrying(name, value)[0])
    until(lambda: not networks & networks_of(each.pid for each in running()))
    assert mounts() == mounted and os.listdir("/sys/class/net") == links
