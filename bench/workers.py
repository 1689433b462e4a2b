"""Processes that take a step on request: the worker's side, and the parent's, which ends them all.

Over a connection of multiprocessing go "step", "step NAME" or "end", answers are JSON objects; whatever
libraries print goes to the parent's log.

    worker                                  parent
    {"ready": FACTS} or {"unsupported": WHY}
                                            step, or step NAME where a worker has several
    {"seconds": S, "loss": L, and what else the step gives}
                                            end
    {"peak_bytes": N, "waited_s": S, "waited_cpu_s": S}

Standard library only: the workers of all contestants import it, whatever their environment has.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence, Union

from base.memory import peak_of
from base.processes import kill_group

ROOT = Path(__file__).resolve().parent.parent
OURS, TORCH = "bench.ours", "bench.peer_torch"  # modules of workers
SET_UP_LIMIT = 300.0  # seconds
STEP_LIMIT = 300.0
END_LIMIT = 20.0
CONNECTION = "BENCH_CONNECTION"  # a worker's variable: the number of its end
NO_TORCH = (
    "PyTorch was left out: there is no environment for it. To make one: python3 -m venv .venv-torch && "
    ".venv-torch/bin/pip install torch==2.13.0 transformers  (or --torch_python, TORCH_PYTHON)"
)
# glibc's malloc gives freed memory back to the system and takes it again, page by page, unless it may not.
# PyTorch's steps are about a fifth faster with it; ours keep their memory anyway.
KEEPS_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
Results = Mapping[str, Any]
ReadResults = Callable[[], Results]
TakeStep = Callable[[], ReadResults]
Steps = Union[TakeStep, Mapping[str, TakeStep]]


class WorkerError(Exception):
    """A worker ended, failed or did not answer in time; the message has the last lines it wrote."""


class Unsupported(Exception):
    """A contestant cannot do this work here; the message says why."""


def serve(set_up: Callable[[], tuple[Steps, dict[str, Any]]]) -> None:
    """Answers the parent until it says "end" or goes away.

    Args:
        set_up: returns the step, or several by name, and the facts about the contestant. A step returns when
            all of its work is done; what it returns gives the results, the loss ("loss") among them where it
            has one, and is called outside the timing.
    """
    connection = Connection(int(os.environ[CONNECTION]))

    def answer(value: dict[str, Any]) -> None:
        connection.send_bytes(json.dumps(value).encode())

    try:
        steps, facts = set_up()
    except Unsupported as reason:
        answer({"unsupported": str(reason)})
        return
    reply: dict[str, Any] = {"ready": facts}
    waited = waited_cpu = 0.0
    while True:
        idle, idle_cpu = time.monotonic(), time.process_time()
        answer(reply)
        try:
            request = connection.recv_bytes().decode()
        except EOFError:  # the parent is gone
            return
        waited, waited_cpu = waited + time.monotonic() - idle, waited_cpu + time.process_time() - idle_cpu
        if request == "end":
            answer({"peak_bytes": peak_of(), "waited_s": waited, "waited_cpu_s": waited_cpu})
            return
        take_step = steps if callable(steps) else steps[request.split()[1]]
        begun = time.perf_counter()
        read_results = take_step()
        seconds = time.perf_counter() - begun
        reply = {"seconds": seconds, "loss": None, **read_results()}


def nothing() -> Results:
    """The results of a step that has none."""
    return {}


def find_torch_python(given: str | None, environ: Mapping[str, str], root: Path = ROOT) -> str | None:
    """The interpreter of an environment with torch: `given`, else TORCH_PYTHON, else .venv-torch; None where
    there is none.

    Raises:
        ValueError: the one that is named does not exist.
    """
    for source, path in (("--torch_python", given), ("TORCH_PYTHON", environ.get("TORCH_PYTHON"))):
        if path:
            if not os.access(path, os.X_OK) or os.path.isdir(path):
                raise ValueError(f"{source} {path}: there is no such program")
            return os.path.abspath(path)
    own = root / ".venv-torch" / "bin" / "python"
    return str(own) if own.exists() else None


class Worker:
    """A process that answers lines, in a process group of its own.

    Use it as a context manager: when the block is left it is gone, with all that it has started. A worker
    whose parent is killed finds their connection closed and ends.
    """

    def __init__(self, name: str, command: Sequence[str], environ: Mapping[str, str]):
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._connection, its = Pipe()
        with its:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                cwd=str(ROOT),
                env={**environ, CONNECTION: str(its.fileno())},
                start_new_session=True,
                pass_fds=[its.fileno()],
            )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        kill_group(self._process)
        self._connection.close()
        self._log.close()

    def wait_until_ready(self, limit: float = SET_UP_LIMIT) -> dict[str, Any]:
        """The facts that the worker states about itself; raises Unsupported or WorkerError."""
        answer = self._read(limit)
        if "unsupported" in answer:
            raise Unsupported(answer["unsupported"])
        return dict(answer["ready"])

    def ask(self, request: str, limit: float = STEP_LIMIT) -> dict[str, Any]:
        """The answer to "step", "step NAME" or "end".

        Raises:
            WorkerError: none comes, or one with a loss that is not finite: its seconds say nothing.
        """
        try:
            self._connection.send_bytes(request.encode())
        except OSError:
            raise self._failure("ended") from None
        answer = self._read(limit)
        if answer.get("loss") is not None and not math.isfinite(answer["loss"]):
            raise WorkerError(f"{self.name}: the loss is {answer['loss']}")
        return answer

    def _read(self, limit: float) -> dict[str, Any]:
        if not self._connection.poll(limit):
            raise self._failure(f"did not answer within {limit:.0f} s")
        try:
            return dict(json.loads(self._connection.recv_bytes()))
        except (EOFError, OSError):
            raise self._failure("ended") from None

    def _failure(self, what: str) -> WorkerError:
        if what == "ended":
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(1.0)
                what += f" with code {code}" if code >= 0 else f" by signal {-code}"
                what += ": is the memory exhausted?" if code == -signal.SIGKILL else ""
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 1500))
        said = self._log.read().decode(errors="replace").strip()
        return WorkerError(f"{self.name} {what}" + (f":\n{said}" if said else ""))


class Contestants:
    """Workers of a measurement, by key. One that fails is left out from then on, and named. A context manager
    as a worker.

    Attributes:
        facts: what each worker states about itself.
        left_out: why a worker is left out.
        failed: whether one began and did not come through.
        waited, waited_cpu: seconds that those which came through waited for a request, and their CPU time.
    """

    def __init__(self, torch_python: str | None = None) -> None:
        self.facts: dict[str, dict[str, Any]] = {}
        self.left_out: dict[str, str] = {}
        self.failed = False
        self.waited = self.waited_cpu = 0.0
        self._torch_python = torch_python
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> Contestants:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers.values():
            worker.__exit__()

    @property
    def keys(self) -> list[str]:
        """Those that take part."""
        return list(self._workers)

    def start(self, key: str, name: str, module: str, words: Sequence[str]) -> None:
        """Adds a worker that is a module of this package, a peer with a malloc that keeps its memory. One on
        PyTorch runs in the interpreter `torch_python`, and not at all where that is None."""
        python = self._torch_python if module == TORCH else sys.executable
        if python is not None:
            environ = os.environ if module == OURS else {**os.environ, **KEEPS_MEMORY}
            self.add(key, Worker(name, [python, "-m", module, *words], environ))

    def add(self, key: str, worker: Worker) -> None:
        """Takes a worker in; returns when it is ready or left out."""
        self._workers[key] = worker
        facts = self._guarded(key, worker.wait_until_ready)
        if facts is not None:
            self.facts[key] = facts

    def step(self, key: str, limit: float = STEP_LIMIT, name: str = "") -> dict[str, Any] | None:
        """A worker's answer to one request; None where it is left out."""
        if key not in self._workers:
            return None
        return self._guarded(key, partial(self._workers[key].ask, f"step {name}".rstrip(), limit))

    def end(self) -> None:
        """Asks every worker for its closing report, which joins its facts."""
        for key in self.keys:
            report = self._guarded(key, partial(self._workers[key].ask, "end", END_LIMIT)) or {}
            self.waited += report.pop("waited_s", 0.0)
            self.waited_cpu += report.pop("waited_cpu_s", 0.0)
            self.facts[key].update(report)

    def _guarded(self, key: str, action: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        try:
            return action()
        except (Unsupported, WorkerError) as error:
            self.failed |= isinstance(error, WorkerError)
            self.left_out[key] = str(error)
            worker = self._workers.pop(key)
            print(f"  {worker.name}: {error}", file=sys.stderr, flush=True)
            worker.__exit__()
            return None
