"""Start real processes from tests and leave none behind.

    result = run_command([sys.executable, "hparams.py", "--json"])
    result = run_ranks("run_pretraining_hvd.py", 2, args=["--num_steps", "3"])
    result.check()                      # AssertionError with both outputs unless it exited with 0
    print(result.ranks[1].stdout)

    with start_ranks(code, 2) as run:                   # to act on a job while it runs
        wait_for_file(path, run=run)
        until(lambda: len(run.find("worker.py")) == 2, run)
        os.kill(run.find(argument="worker.py")[0], signal.SIGKILL)
        result = run.wait()

Every run has its own session and carries a marker in its environment, which its children inherit: daemons
that leave the session (Open MPI's orted) are found by the marker. At the time limit everything gets SIGTERM
and, after `grace` seconds, SIGKILL. A process that outlives the launcher by more than `grace` seconds is
killed and reported as `LeftoverProcesses`. If the test process itself dies, the kernel sends SIGTERM to the
launcher. Linux only (/proc). Standard library only.

LIMIT ends what hangs, and is no measure of speed: on a machine that others share anything may take twenty
times as long. What a test awaits is a state, by `until`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence, TypeVar

from hosts.launching.mpirun_output import MpirunOutput
from hosts.launching.over_mpirun import PRRTE
from hosts.mpirun import version

ROOT = Path(__file__).resolve().parent.parent
# Figures of metrics.jsonl that no two runs share.
OF_TIME = (
    "time",
    "training_s",
    "mfu",
    "tokens_per_s",
    "padded_tokens_per_s",
    "sequences_per_s",
    "step_s",
    "rank_wait_s",
    "data_wait",
    "resumed_at",
    "eval_s",
)
MARKER = "TEST_RUN_MARKER"
TIMED_OUT = 124  # return code of a run that met its time limit, as coreutils' timeout gives it
LIMIT = 600.0  # seconds
GRACE = 60.0  # seconds that processes may take to end after their launcher
Reached = TypeVar("Reached")
_TAGGED = ("--output", "rank:raw")  # Open MPI 5's words


class LeftoverProcesses(AssertionError):
    """Processes of a run were still alive after its launcher had ended. They have been killed."""


@dataclass(frozen=True)
class RankOutput:
    """The output of one rank."""

    stdout: str
    stderr: str


@dataclass(frozen=True)
class RunResult:
    """The remains of a run: `returncode` is the launcher's (minus the signal's number when one killed it,
    124 when the time limit was met), `ranks` the outputs by rank (empty for `run_command`)."""

    argv: list[str]
    returncode: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool
    ranks: list[RankOutput] = field(default_factory=list)

    def check(self) -> RunResult:
        """Return self, or raise AssertionError with the ends of both outputs if the return code is not 0."""
        if self.returncode != 0:
            raise AssertionError(self.describe())
        return self

    def describe(self, limit: int = 6000) -> str:
        how = "met its time limit" if self.timed_out else f"exited with {self.returncode}"
        return (
            f"{' '.join(self.argv)}\n{how} after {self.seconds:.1f} s\n"
            f"--- stdout\n{self.stdout[-limit:]}\n--- stderr\n{self.stderr[-limit:]}"
        )


class Run:
    """A running command. Use it as a context manager: leaving the block kills what is still alive."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        timeout: float,
        env: Mapping[str, str | None] | None,
        cwd: str | Path | None,
        grace: float,
        directory: Path | None = None,
        num_ranks: int = 0,
    ):
        self.argv = [str(word) for word in argv]
        self._tagged = set(_TAGGED) <= set(self.argv)
        self.timeout = timeout
        self.grace = grace
        self.num_ranks = num_ranks
        self._marker = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._directory = directory or Path(tempfile.mkdtemp(prefix="run-"))
        # Open MPI leaves its shared memory behind when its ranks are killed; here it goes with the run.
        self._shared_memory = Path("/dev/shm") / self._directory.name
        with contextlib.suppress(OSError):
            self._shared_memory.mkdir()
        self._result: RunResult | None = None
        launcher = self.argv
        setpriv = shutil.which("setpriv")
        if setpriv:
            launcher = [setpriv, "--pdeathsig", "TERM", "--", *self.argv]
        self._start = time.monotonic()
        try:
            # Files instead of pipes: a process that keeps a pipe open could make the reader wait for ever.
            with open(self._directory / "stdout", "wb") as out, open(self._directory / "stderr", "wb") as err:
                self._process = subprocess.Popen(
                    launcher,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    cwd=str(cwd or ROOT),
                    env=self._environment(env),
                    start_new_session=True,
                )
        except BaseException:
            self._remove_files()
            raise

    @property
    def pid(self) -> int:
        """Process id of the launcher (the command itself for `start_command`)."""
        return self._process.pid

    def pids(self) -> list[int]:
        """All living processes of this run, the launcher included."""
        return _living(self._process.pid, self._marker)

    def find(self, argument: str) -> list[int]:
        """Process ids, in ascending order, of the run's Python processes whose script, or module (-m), ends
        with `argument`: ranks, neither the launcher nor a shell around them. Source text is "code.py"."""
        found = []
        for pid in self.pids():
            words = _read_words(pid, "cmdline")
            if not words or "python" not in os.path.basename(words[0]):
                continue
            script = words[2:3] if words[1:2] == ["-m"] else words[1:2]
            if script and script[0].endswith(argument):
                found.append(pid)
        return sorted(found)

    def find_role(self, role: str, **variables: object) -> list[int]:
        """Process ids, in ascending order, of the run's BytePS processes whose DMLC_ROLE is `role` ("worker",
        "server", "scheduler") and whose environment has the other `variables`; not their supervisors."""
        wanted = {f"{name}={value}" for name, value in {"DMLC_ROLE": role, **variables}.items()}
        return sorted(
            pid
            for pid in self.pids()
            if wanted <= set(_read_words(pid, "environ"))
            and not any(word.endswith("supervise.py") for word in _read_words(pid, "cmdline"))
        )

    def signal(self, number: int) -> None:
        """Send a signal to the launcher only."""
        self._process.send_signal(number)

    def stdout(self) -> str:
        """The launcher's standard output until now."""
        return self._text("stdout")

    def stderr(self) -> str:
        return self._text("stderr")

    def _text(self, name: str) -> str:
        text = _read_text(self._directory / name)
        return re.sub(rf"\[\d+\]<{name}>: ", "", text) if self._tagged else text

    def poll(self) -> int | None:
        """Return code of the launcher, None while it runs."""
        return self._process.poll()

    def end_within(self, seconds: float) -> None:
        """Bring the time limit forward to so many seconds from now."""
        self.timeout = min(self.timeout, time.monotonic() - self._start + seconds)

    def kill_when(self, reached: Callable[[], Any]) -> None:
        """Kill everything as soon as `reached()` is true, as if at one moment: none lives on to report
        another's death, or goes on while processes are looked for."""
        known: list[int] = []
        looked = 0.0

        def look() -> bool:
            nonlocal known, looked
            if time.monotonic() - looked > 0.3:
                known, looked = self.pids(), time.monotonic()
            return bool(reached())

        until(look, self, pause=0.0005)
        for pid in known:
            if f"{MARKER}={self._marker}" in _read_words(pid, "environ"):  # still the same process
                _send(pid, signal.SIGSTOP)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in self.pids():
                _send(pid, number)

    def wait(self) -> RunResult:
        """Wait for the end, at most until the time limit (counted from the start); kill what is left.

        Raises `LeftoverProcesses` when the launcher ended by itself but processes of the run did not.
        """
        if self._result is not None:
            return self._result
        timed_out = False
        try:
            self._process.wait(max(0.0, self._start + self.timeout - time.monotonic()))
        except subprocess.TimeoutExpired:
            timed_out = True
        seconds = time.monotonic() - self._start
        leftovers: list[str] = []
        if not timed_out and not _within(self.grace, lambda: not self.pids()):
            leftovers = [f"{pid} {' '.join(_read_words(pid, 'cmdline'))[:200]}" for pid in self.pids()]
        self._kill_all(gently=timed_out)
        self._result = RunResult(
            argv=self.argv,
            returncode=TIMED_OUT if timed_out else self._process.returncode,
            stdout=self.stdout(),
            stderr=self.stderr(),
            seconds=seconds,
            timed_out=timed_out,
            ranks=[self._rank_output(rank) for rank in range(self.num_ranks)],
        )
        self._remove_files()
        if leftovers:
            raise LeftoverProcesses("\n".join(["still alive:", *leftovers, self._result.describe()]))
        return self._result

    def finish(self) -> RunResult:
        """Wait for the end of a run that must exit with 0, as `wait` and `check` do, outside a block."""
        with self:
            return self.wait().check()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self._kill_all(gently=False)
        self._remove_files()

    def _remove_files(self) -> None:
        for directory in (self._directory, self._shared_memory):
            shutil.rmtree(directory, ignore_errors=True)

    def _environment(self, changes: Mapping[str, str | None] | None) -> dict[str, str]:
        env = dict(os.environ)
        # The launcher's temporary files go with this run's directory.
        env.update({MARKER: self._marker, "TMPDIR": str(self._directory), "PYTHONUNBUFFERED": "1"})
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        if self._shared_memory.is_dir():
            env["OMPI_MCA_btl_vader_backing_directory"] = str(self._shared_memory)
        for name, value in (changes or {}).items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = str(value)
        return env

    def _kill_all(self, gently: bool) -> None:
        def ended() -> bool:
            return self._process.poll() is not None and not self.pids()

        def none_is_left_to_kill() -> bool:
            pids = self.pids()
            for pid in pids:
                _send(pid, signal.SIGKILL)
            self._process.poll()
            return not pids

        if gently:
            # The launcher first: mpirun and horovodrun take their ranks down themselves.
            _send(self.pid, signal.SIGTERM)
            if not _within(self.grace, ended):
                for pid in self.pids():
                    _send(pid, signal.SIGTERM)
                _within(1.0, ended)
        if not _within(LIMIT, none_is_left_to_kill):
            raise LeftoverProcesses(f"SIGKILL did not end {self.pids()} of {' '.join(self.argv)}")
        self._process.wait()

    def _rank_output(self, rank: int) -> RankOutput:
        # mpirun writes <dir>/<job>/rank.<r>/stdout, horovodrun and launch.py <dir>/rank.<r>/stdout.
        # The first two pad r with zeros, and horovodrun puts "[r]<stdout>:" before every line.
        texts = {}
        for which, name in enumerate(("stdout", "stderr")):
            if self._tagged:
                output, data = MpirunOutput(), _read_text(self._directory / name).encode()
                lines = [
                    each for line in data.splitlines(keepends=True) for each in output.split(which, line)
                ]
                lines += [(part, text) for _, part, text in output.finish()]
                own = [text for part, text in lines if part == f"rank {rank}"]
                texts[name] = b"".join(own).decode("utf-8", "replace")
                continue
            files = [
                path
                for path in (self._directory / "ranks").rglob(name)
                if path.parent.name.startswith("rank.") and int(path.parent.name[len("rank.") :]) == rank
            ]
            text = _read_text(files[0]) if files else ""
            texts[name] = re.sub(rf"^\[{rank}\]<{name}>:", "", text, flags=re.MULTILINE)
        return RankOutput(**texts)


def start_command(
    argv: Sequence[str | Path],
    timeout: float = LIMIT,
    env: Mapping[str, str | None] | None = None,
    cwd: str | Path | None = None,
    grace: float = GRACE,
) -> Run:
    """Start one command. `env` changes the inherited environment (None removes a variable), `cwd` is the
    repository root by default, which is also put on PYTHONPATH."""
    return Run(argv, timeout, env, cwd, grace)


def run_command(argv: Sequence[str | Path], timeout: float = LIMIT, **options: Any) -> RunResult:
    """Run one command to its end; same arguments as `start_command`."""
    with start_command(argv, timeout, **options) as run:
        return run.wait()


def start_ranks(
    script_or_code: str | Path,
    num_ranks: int,
    launcher: str = "mpirun",
    timeout: float = LIMIT,
    env: Mapping[str, str | None] | None = None,
    args: Sequence[Any] = (),
    cwd: str | Path | None = None,
    launcher_args: Sequence[Any] = (),
    grace: float = GRACE,
    prefix: Sequence[str] = (),
    local_ranks: int = 1,
) -> Run:
    """Start `num_ranks` Python processes with this interpreter.

    `script_or_code`: a script's path, or source text (anything with a line break).
    `launcher`: "mpirun" (Open MPI), "launch" (mpirun under hosts/launch.py), "gloo" (horovodrun --gloo),
    "byteps" (hosts/launch.py, with one server and a scheduler unless there is only one worker) or
    "none" (num_ranks must be 1; no launcher).
    `launcher_args`: more arguments for the launcher, e.g. a host file. `prefix`: words before the launcher.
    `local_ranks`: ranks of a BytePS worker; all workers run on this machine unless `launcher_args` have a
    host file of their own.
    """
    if local_ranks != 1 and (launcher != "byteps" or num_ranks % local_ranks):
        raise ValueError(f"local_ranks {local_ranks} for {num_ranks} ranks of launcher {launcher!r}")
    directory = Path(tempfile.mkdtemp(prefix="run-"))
    try:
        if "\n" in str(script_or_code):
            script = directory / "code.py"
            script.write_text(str(script_or_code), encoding="utf-8")
        else:
            script = Path(script_or_code)
        worker = [sys.executable, str(script), *map(str, args)]
        words = _launcher_words(launcher, num_ranks, directory / "ranks")
        if "--bind-to" in launcher_args:  # Open MPI 5 does not take it twice
            place = words.index("--bind-to")
            del words[place : place + 2]
        words += map(str, launcher_args)
        if launcher in ("byteps", "launch"):
            hostfile = directory / "hostfile"
            slots = local_ranks if launcher == "byteps" else num_ranks
            hostfile.write_text(f"localhost slots={slots}\n" * (num_ranks // slots), "ascii")
            words += [] if "--hostfile" in words else ["--hostfile", str(hostfile)]
            words.append("--")
        argv = [*prefix, *words, *worker]
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    changes: dict[str, str | None] = {}
    if launcher == "mpirun" and os.geteuid() == 0:
        changes.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    changes.update(env or {})
    return Run(argv, timeout, changes, cwd, grace, directory, num_ranks)


def run_ranks(
    script_or_code: str | Path,
    num_ranks: int,
    launcher: str = "mpirun",
    timeout: float = LIMIT,
    **options: Any,
) -> RunResult:
    """Run `num_ranks` Python processes to their end; same arguments as `start_ranks`."""
    with start_ranks(script_or_code, num_ranks, launcher, timeout, **options) as run:
        return run.wait()


def python_3_9() -> str | None:
    """The oldest Python that the code must run on, where this machine has it."""
    found = shutil.which("python3.9")
    if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
        return found
    installed = sorted(Path.home().glob(".pyenv/versions/3.9.*/bin/python"))
    return str(installed[0]) if installed else None


def executable(path: Path, text: str) -> Path:
    """Writes a program, such as a script of sh; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    path.chmod(0o755)
    return path


def words_of(options: Mapping[str, Any]) -> list[str]:
    """The command line of options by name: True is a flag alone, None and False leave an option out."""
    words: list[str] = []
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", str(value)]
    return words


def environ_of(pid: int) -> list[str]:
    """`NAME=VALUE` for each variable that a process was started with; empty if it is gone."""
    return _read_words(pid, "environ")


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    return _read_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"])


def until(
    reached: Callable[[], Reached | None], run: Run | None = None, pause: float = 0.01, limit: float = LIMIT
) -> Reached:
    """Wait for `reached()` to be true and return what it gives; AssertionError after the limit, and as soon
    as `run`, which should bring it about, has ended."""
    deadline = time.monotonic() + limit
    while True:
        ended = run is not None and run.poll() is not None  # asked before the last look
        found = reached()
        if found:
            return found
        if run is not None and ended:
            raise AssertionError(f"it ended too early: {run.wait().describe()}")
        if time.monotonic() > deadline:
            output = f"\n--- stdout\n{run.stdout()}\n--- stderr\n{run.stderr()}" if run else ""
            raise AssertionError(f"waited {limit:g} s in vain{output}")
        time.sleep(pause)


def _within(seconds: float, reached: Callable[[], bool]) -> bool:
    """Whether `reached()` is true before so many seconds have passed."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def nothing_new(before: set[str], now: Callable[[], set[str]]) -> None:
    """Wait until what has come to `now()` is gone: that of runs beside this one goes, what was left stays."""
    new = now() - before
    until(lambda: not new & now())


def once(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """As `make`, called once for each name; what has failed is not tried again."""
    made: dict[Any, Any] = {}

    def get(name: Any) -> Any:
        if name not in made:
            made[name] = None
            made[name] = make(name)
        assert made[name] is not None, f"{name} has failed before"
        return made[name]

    return get


def wait_for_file(path: str | Path, text: str = "", run: Run | None = None) -> None:
    """Wait, as `until` does, for a file with `text` in it."""
    until(lambda: os.path.isfile(path) and text in _read_text(Path(path)), run)


def _launcher_words(launcher: str, num_ranks: int, output: Path) -> list[str]:
    if launcher == "mpirun":
        words = ["mpirun", "-np", str(num_ranks), "--oversubscribe", "--bind-to", "none"]
        # 5.0.7 fails to make the second of a rank's two files.
        new = version("mpirun") >= PRRTE
        return [*words, *(_TAGGED if new else ("--output-filename", str(output)))]
    if launcher == "gloo":
        words = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(num_ranks)]
        return [*words, "-H", f"localhost:{num_ranks}", "--output-filename", str(output)]
    if launcher in ("launch", "byteps"):
        words = [sys.executable, str(ROOT / "hosts" / "launch.py"), "--max_restarts", "0", "--backend"]
        return [*words, "byteps" if launcher == "byteps" else "hvd", "--log_dir", str(output)]
    if launcher == "none" and num_ranks == 1:
        return []
    raise ValueError(f"no launcher {launcher!r} for {num_ranks} ranks")


def _living(leader: int, marker: str) -> list[int]:
    """Processes in the leader's session or with the marker in their environment. Zombies do not count: they
    hold nothing, and the leader's is reaped by its Popen."""
    wanted = f"{MARKER}={marker}"
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        pid = int(entry)
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                # The command's name is in parentheses and may contain anything.
                state, _, _, session = file.read().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if state in "ZX":
            continue
        if int(session) == leader or wanted in _read_words(pid, "environ"):
            found.append(pid)
    return found


def _read_words(pid: int, name: str) -> list[str]:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return []


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
