"""Check of this machine's GPUs: does everything compute there what it computes on a CPU, and how fast?

    make check-gpu
    python -m bench.gpu [--parts precision speed memory backends contract equality] [--json check_gpu.json]

precision: float16 with a dynamic loss scale against float32, the same batches learned by heart.
speed: seconds of a step, sequences a second and memory, with and without accumulation; what does not fit is
shown as such. memory: asking for too much is answered with "out of memory".
backends: run_pretraining_hvd.py and run_pretraining_byteps.py with a rank on each GPU; both must show
the same losses. contract: the rules of comm/base.py, checked by the ranks. equality: ranks hold the same
bits, both backends the same parameters up to rounding.

Prints a table and a verdict. Exit codes: 0 all passed, 1 something failed, 2 no GPU or bad options.
--device cpu goes through the same at the sizes of --quick, to see that the check itself works.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from base import machine
from base.command_line import positive_int
from base.errors import InputError
from base.json_files import read_json_lines
from base.processes import run_in_session
from base.tables import Row, Table, terminal
from bench.harness import NOTICE, Measurement, end_at, write_figures
from bench.workers import ROOT
from training.entry import exit_code

TIME_LIMIT = 1800.0  # seconds for one process or launch
BACKENDS = {"hvd": "horovod", "byteps": "byteps"}  # a name here and in the tests' workers
ACCUMULATE = (1, 4)
# Compute capabilities that mxnet-cu112's libmxnet.so has machine code for; code of a minor version serves the
# later ones of its major version. It has no PTX, from which a driver could make code for others.
COMPILED = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))
# Losses of float16 (11 bits) and float32 over the steps: what rounding moves, times ten.
PRECISION_TOLERANCE = 0.02
BACKENDS_TOLERANCE = 0.002
PARAMETERS_TOLERANCE = 0.02  # of the larger parameter; LAMB's steps magnify rounding


@dataclass(frozen=True)
class Work:
    """The device, the ranks that use it, and the sizes."""

    device: str
    ranks: int
    models: Sequence[str]
    rows: int
    length: int
    steps: int

    @property
    def low(self) -> str:
        """The short floating-point type of this device."""
        return "float16" if self.device == "gpu" else "bfloat16"

    def take_steps(self, model: str, dtype: str, accumulate: int) -> dict[str, Any]:
        """The answer of bench.gpu_worker about its steps."""
        sizes = {"rows": self.rows, "length": self.length, "steps": self.steps, "accumulate": accumulate}
        return ask("steps", device=self.device, model=model, dtype=dtype, sizes=sizes)


class Result(NamedTuple):
    """A row: what was checked, what was seen, and whether that is as it must be."""

    part: str
    what: str
    seen: str
    passed: bool


class Failed(Exception):
    """A process of the check did not do its work; the message is its last line."""


def ask(what: str, **settings: Any) -> dict[str, Any]:
    """The answer of bench.gpu_worker. Failed where it does not give one."""
    text = started([sys.executable, "-m", "bench.gpu_worker", what, json.dumps(settings)], {})
    return dict(json.loads(text.strip().splitlines()[-1]))


def started(command: Sequence[str], more: Mapping[str, str]) -> str:
    """Output of a command that ends well. Failed with the last line of one that does not."""
    try:
        code, text = run_in_session(command, {**os.environ, "PYTHONPATH": str(ROOT), **more}, TIME_LIMIT)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"still running after {TIME_LIMIT:.0f} s") from error
    if code:
        lines = [line for line in text.strip().splitlines() if line.strip()]
        raise Failed(f"exit code {code}: {lines[-1].strip() if lines else 'no output'}")
    return text


def find_ranks(device: str) -> int:
    """GPUs of this machine; on the CPU two ranks.

    Raises:
        InputError: there is none that MXNet can use; the message says what is missing.
    """
    if device == "cpu":
        return 2
    try:
        found = ask("devices")
    except Failed as error:
        reason = f"MXNet cannot be loaded ({error}); install the NVIDIA driver and run make setup CUDA=112"
        raise InputError(f"no GPU: {reason}") from error
    if not found["cuda"]:
        raise InputError(
            "no GPU: this MXNet is built for CPUs; on a machine with GPUs run make setup CUDA=112"
        )
    if not found["gpus"]:
        raise InputError("no GPU: the driver reports none; look at nvidia-smi and CUDA_VISIBLE_DEVICES")
    lacking = without_code(found["capabilities"])
    if lacking:
        raise InputError(
            f"{lacking}: MXNet 1.9.1 has no code for it (it has some for 5.0 to 8.9); "
            "choose other GPUs with CUDA_VISIBLE_DEVICES"
        )
    return int(found["gpus"])


def without_code(capabilities: Sequence[Sequence[int]]) -> str:
    """The first GPU that libmxnet.so has no code for, as words; "" where there is none."""
    for device, (major, minor) in enumerate(capabilities):
        if not any(major == code[0] and minor >= code[1] for code in COMPILED):
            return f"GPU {device} has compute capability {major}.{minor}"
    return ""


def precision(work: Work) -> list[Result]:
    """The losses of the short type against float32's."""
    results = []
    for model in work.models:
        both = [work.take_steps(model, dtype, 1) for dtype in ("float32", work.low)]
        name = f"{model}, {work.low} against float32"
        lacks = [seen["out_of_memory"] for seen in both if "out_of_memory" in seen]
        if lacks:
            results.append(Result("precision", name, f"out of memory: {lacks[0]}", False))
            continue
        exact, low = (np.array(seen["losses"]) for seen in both)
        applied = both[1]["skipped"] < work.steps // 2
        # A step that the loss scale skips sets the short type back; where both agree it has not.
        apart = float(np.max(np.abs(low - exact) / exact)) if not both[1]["skipped"] else None
        fallen = float(exact[-1] - low[-1]) / float(exact[-1])
        close = abs(fallen) if apart is None else apart
        seen_text = f"losses {close:.2%} apart, {both[1]['skipped']} skipped, scale {both[1]['scale']:.0f}"
        good = bool(applied and close <= PRECISION_TOLERANCE and np.isfinite(low).all())
        results.append(Result("precision", name, seen_text, good))
    return results


def speed(work: Work) -> list[Result]:
    """Throughput and memory. What does not fit into the device is no failure, if it is said."""
    results = []
    for model, dtype, accumulate in product(work.models, ("float32", work.low), ACCUMULATE):
        seen = work.take_steps(model, dtype, accumulate)
        text = (
            f"out of memory: {seen['out_of_memory']}"
            if "out_of_memory" in seen
            else f"{seen['step_s'] * 1e3:.1f} ms, {seen['sequences_per_s']:.1f} sequences/s, "
            f"{seen['bytes'] / 2**30:.2f} GiB"
        )
        what = f"{model}, {dtype}, {accumulate} x {work.rows} x {work.length}"
        results.append(Result("speed", what, text, True))
    return results


def memory(work: Work) -> list[Result]:
    """Too much memory is asked for."""
    seen = ask("beyond", device=work.device)
    said = seen.get("out_of_memory")
    return [Result("memory", "more than there is", said or "no error", said is not None)]


def launched(work: Work, command: Callable[[str, Path], Sequence[object]]) -> Iterator[tuple[str, Path]]:
    """Runs the `command` of each backend and a folder of its own with a rank on each GPU; gives both. Failed
    where it does not end well."""
    more = {"RANKS_DEVICE": work.device, "OMP_NUM_THREADS": "1"}
    for backend in BACKENDS:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            hosts = folder / "hosts"
            hosts.write_text(f"localhost slots={work.ranks}\n", encoding="utf-8")
            launcher = [ROOT / "hosts" / "launch.py", "--backend", backend, "--hostfile", hosts]
            words = [*launcher, "--max_restarts", 0, "--", sys.executable, *command(backend, folder)]
            started([sys.executable, *map(str, words)], more)
            yield backend, folder


def backends(work: Work) -> list[Result]:
    """The training scripts of both backends, from the same seed, on the same random tokens."""

    def script(backend: str, folder: Path) -> list[object]:
        options = {
            "ckpt_dir": folder / "ckpt", "dummy_data_len": work.length, "max_seq_length": work.length,
            "model": work.models[0], "batch_size": work.rows, "num_steps": work.steps,
            "log_interval": 1, "lr": 0.001, "dropout": 0,
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        return [ROOT / f"run_pretraining_{backend}.py", *words]

    results, curves = [], []
    for backend, folder in launched(work, script):
        seen = read_json_lines(str(folder / "ckpt" / "metrics.jsonl"))
        curve = np.array([row["mlm_loss"] for row in seen if "mlm_loss" in row])
        rate = float(np.median([row["sequences_per_s"] for row in seen if "sequences_per_s" in row]))
        text = f"{len(curve)} steps, loss {curve[-1]:.4f}, {rate:.1f} sequences/s"
        good = bool(np.isfinite(curve).all()) and len(curve) == work.steps
        results.append(Result("backends", f"{backend}, {work.ranks} ranks, {work.models[0]}", text, good))
        curves.append(curve)
    first, second = curves
    apart = float(np.max(np.abs(first - second) / first)) if len(first) == len(second) else float("inf")
    good = apart <= BACKENDS_TOLERANCE
    return [*results, Result("backends", "hvd against byteps", f"losses {apart:.3%} apart", good)]


def contract(work: Work) -> list[Result]:
    """The checks of tests/comm/contract_worker.py over both backends."""

    def script(backend: str, folder: Path) -> list[object]:
        return [ROOT / "tests/comm/contract_worker.py", BACKENDS[backend], folder]

    results = []
    for backend, folder in launched(work, script):
        files = sorted(folder.glob("*.jsonl"))
        records = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
        wrong = sorted({record["check"] for record in records if record["error"] is not None})
        failed = f", failed: {', '.join(wrong)}" if wrong else ""
        text = f"{len(records)} checks on {len(files)} ranks{failed}"
        results.append(Result("contract", backend, text, not wrong and len(files) == work.ranks))
    return results


def equality(work: Work) -> list[Result]:
    """The runs of tests/comm/equality_worker.py over both backends."""

    def script(backend: str, folder: Path) -> list[object]:
        return [ROOT / "tests/comm/equality_worker.py", BACKENDS[backend], folder, work.ranks]

    results, of_backends = [], []
    for backend, folder in launched(work, script):
        ends = []
        for rank in range(work.ranks):
            with np.load(folder / f"{rank}.accumulate-1.parameters.npz", allow_pickle=False) as file:
                ends.append(dict(file))
        same = all(np.array_equal(ends[0][key], end[key]) for end in ends for key in ends[0])
        text = "the same bits on all ranks" if same else "ranks have drifted apart"
        results.append(Result("equality", f"{backend}, {work.ranks} ranks", text, same))
        of_backends.append(ends[0])
    apart = max(
        float(np.max(np.abs(first - of_backends[1][key])) / np.max(np.abs(first)))
        for key, first in of_backends[0].items()
    )
    passed = apart <= PARAMETERS_TOLERANCE
    return [*results, Result("equality", "hvd against byteps", f"parameters {apart:.2%} apart", passed)]


CHECKS: Mapping[str, Callable[[Work], list[Result]]] = {
    each.__name__: each for each in (precision, speed, memory, backends, contract, equality)
}


def check(work: Work, parts: Sequence[str]) -> list[Result]:
    """Results of the parts, in their order; a part that breaks off is one that has not passed."""
    results: list[Result] = []
    for part in parts:
        print(f"{part} ...", file=sys.stderr, flush=True)
        try:
            results += CHECKS[part](work)
        except (Failed, OSError, ValueError, KeyError) as error:
            results.append(Result(part, "broke off", " ".join(str(error).split()), False))
    return results


def report(work: Work, results: Sequence[Result]) -> tuple[Table, str]:
    """The table, and the verdict in one line."""
    rows = [Row((r.part, r.what, r.seen, "passed" if r.passed else "FAILED")) for r in results]
    where = machine.gpus() or "this CPU" if work.device == "gpu" else "this CPU: a trial of the check itself"
    failed = sum(not result.passed for result in results)
    verdict = f"FAILED: {failed} of {len(results)} checks" if failed else f"passed: all {len(results)} checks"
    return Table(f"GPU check on {where}", ("part", "what", "seen", ""), rows, names=4), verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = Measurement("gpu", __doc__, "bert_1_32_2, 2 sequences of 16 tokens")
    add = parser.option
    positive: dict[str, Any] = {"type": positive_int, "metavar": "N"}
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="(default: gpu)")
    add("--parts", list(CHECKS), nargs="+", choices=CHECKS)
    models = ["bert_12_768_12", "bert_24_1024_16"]
    add("--models", models, ["bert_1_32_2"], nargs="+", metavar="bert_L_H_A")
    add("--rows", 32, 2, "sequences a micro-batch", **positive)
    add("--length", 128, 16, "tokens a sequence", **positive)
    add("--steps", 20, 8, **positive)
    options = parser.parse_args(arguments)
    options.quick = options.quick or options.device == "cpu"
    parser.settle(options)
    end_at(signal.SIGINT, signal.SIGTERM)  # with what it has started
    sizes = (options.models, options.rows, options.length, options.steps)
    work = Work(options.device, find_ranks(options.device), *sizes)
    results = check(work, options.parts)
    table, verdict = report(work, results)
    print(terminal(table))
    if options.quick:
        print(NOTICE)
    print(verdict)
    if options.json:
        facts = {"machine": machine.describe(ROOT), "gpus": machine.gpus(), "verdict": verdict}
        write_figures(options.json, {**facts, "results": [result._asdict() for result in results]})
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(exit_code(main))
