"""A training run of seconds that figures attack: two ranks, both stages, text of this project's own; what it
has done so far, and whose process is whose."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

from base.files import replacing
from base.json_files import read_json_lines
from data.embedded import build
from tests.faults.figure import Setting
from tests.processes import OF_TIME, ROOT, Run, environ_of, start_ranks, until, words_of
from training.checkpoint import list_steps, read_manifest

SCRIPTS = {"mpirun": "run_pretraining_hvd.py", "gloo": "run_pretraining_hvd.py"}
SCRIPTS["byteps"] = "run_pretraining_byteps.py"
STEPS = (10, 10)  # of the stages
LAST = sum(STEPS)
INTERVAL = 4  # of checkpoints: some kills come long after one, some right behind it
SECONDS = 600.0  # against a hang: within which a run has ended, on a busy machine too
END_SECONDS = 30.0  # from a failure, or from when it can be noticed, to the end of the last process
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
UNFINISHED = re.compile(r"\d{7}\.(params|states\.npz|json)\.tmp-.*")

# Damages of several figures, as Python that is run in each rank.
LOST_STATES = """
import training.run
training.run.restore_states = lambda *given, **named: None
"""
OWN_COUNTS = """
import training.step
from comm.local import LocalCommunicator
factors = training.step.TrainStep._factors
training.step.TrainStep._factors = lambda self, batches, sharing: factors(self, batches, LocalCommunicator())
"""
NOT_RESCUED = """
import training.rescue
training.rescue.Rescue._save = lambda self, has_first: ""
"""
UNSEEN = """
import comm.watch.heartbeat, comm.watch.watchdog
comm.watch.watchdog.WatchedCommunicator._end = lambda self, kind, text: None
"""
UNNAMED = """
import comm.watch.watchdog
end = comm.watch.watchdog._end_process
comm.watch.watchdog._end_process = lambda message, rank, *rest: end("lost", rank)
"""

WRITING = (".params", ".states.npz", ".json")  # the files of a checkpoint, in their order
# Rank 0 stops itself while it saves, which takes milliseconds: too short to be caught from outside on a busy
# machine. Formatted with the first step whose checkpoint counts, and the moment: of WRITING, or "receiving",
# from the other stages of a pipeline.
STOPPING_ITSELF = """
import os, re, signal, threading
import training.pipeline.state, training.saving
at, wanted = {step}, {moment!r}
begin, receive, sync = (
    training.saving.Saver.begin, training.pipeline.state.Elsewhere.receive, os.fsync
)
saved = 0
def stop(moment):
    nonlocal wanted
    if moment == wanted and saved >= at:
        wanted = None
        # To this thread: one to the process is another thread's to take, and this one goes on until then.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
def begin_step(self, step, *given, **more):
    nonlocal saved
    saved = step
    begin(self, step, *given, **more)
def stop_and_receive(self, into):
    stop("receiving")
    return receive(self, into)
def stop_and_sync(descriptor):
    name = os.readlink(f"/proc/self/fd/{{descriptor}}")
    found = re.fullmatch(r".*/\\d{{7}}([.a-z]+)\\.tmp-[^/]*", name)
    if found:
        stop(found[1])
    sync(descriptor)
training.saving.Saver.begin = begin_step
training.pipeline.state.Elsewhere.receive = stop_and_receive
os.fsync = stop_and_sync
"""


def moved(by: int) -> str:
    """Damage: a resumed run begins so many sequences later."""
    return f"""
import training.start.start
place = training.start.start.position_to_continue
def moved(start, *rest, **named):
    position, messages = place(start, *rest, **named)
    return position + ({by} if start.step else 0), messages
training.start.start.position_to_continue = moved
"""


def unsaved(but: str = "") -> str:
    """Damage: a stopped run saves nothing. On all ranks: one alone that does not save with the others leaves
    them waiting."""
    return f"""
import training.last_good
save = training.last_good.Checkpoints.save
training.last_good.Checkpoints.save = lambda self, step, planned, ended, interrupted: (
    None if interrupted {but} else save(self, step, planned, ended, interrupted)
)
"""


def corpus(setting: Setting) -> Path:
    """The embedded text with a small vocabulary and its cache, made once."""
    folder = setting.shared / "embedded"
    folder.mkdir(exist_ok=True)
    build(str(folder), vocab_size=1024)
    return folder


@dataclass(frozen=True)
class Job:
    """A run of two stages, damaged as its setting has it. `patch`: more Python that is run in each rank
    before the script's own work."""

    setting: Setting
    accumulate: int = 1
    patch: str = ""

    @property
    def script(self) -> Path:
        """The script of the backend, behind the patches if there are any."""
        script, patch = ROOT / SCRIPTS[self.setting.launcher], self.patch + self.setting.patch
        if not patch:
            return script
        folder = self.setting.work / "patched"
        folder.mkdir(exist_ok=True)
        with replacing(str(folder / script.name)) as file:  # which ranks may be reading
            file.write(patched(script, patch).encode())
        return folder / script.name

    def words(self, directory: Path, **changes: Any) -> list[str]:
        """The options of the run in `directory`; without those that `changes` sets to None."""
        text = corpus(self.setting)
        held_out = text / "corpus" / "eval.txt"
        options = {
            "raw": True, "resume": True, "stages": "both", "data": held_out, "data_eval": held_out,
            "vocab": text / "vocab.txt",
            "cache_dir": text / "tokens", "model": "bert_1_32_2", "max_seq_length": "16,64",
            "batch_size": "8,2", "accumulate": self.accumulate, "num_buckets": 2,
            "num_steps": ",".join(map(str, STEPS)), "lr": "0.02,0.01", "warmup_ratio": "0.2,0.5",
            "log_interval": 1, "ckpt_interval": INTERVAL, "seed": 3, "progress": "lines", "peak_tflops": 1,
            "comm_timeout": 60, "ckpt_dir": directory, **changes,
        }  # fmt: skip
        return words_of(options)

    def start(self, words: Sequence[str], ranks: int = 2, launcher: str = "", **options: Any) -> Run:
        """Starts or resumes the run with these words; `options` as of `start_ranks`."""
        given = {"timeout": SECONDS, "env": ONE_THREAD, "grace": 15.0, **options}
        launcher = launcher or starter(self.setting, ranks)
        return start_ranks(self.script, ranks, launcher, args=words, **given)


def starter(setting: Setting, ranks: int = 2) -> str:
    """The launcher's name in tests/processes.py: mpirun is started by the project's own launcher. horovodrun
    fails where it keeps the output of a single rank (log of 0)."""
    if setting.launcher == "gloo" and ranks == 1:
        return "none"
    return "launch" if setting.launcher == "mpirun" else setting.launcher


def whole(setting: Setting, accumulate: int = 1) -> Path:
    """The directory of an undisturbed, undamaged run, made once for a backend.

    Raises:
        AssertionError: it failed.
    """
    directory = setting.shared / f"whole-{setting.backend}-{accumulate}"
    if not (directory / f"{LAST:07d}.json").exists():
        job = Job(undamaged(setting), accumulate)
        job.start(job.words(directory)).finish()
    return directory


def undamaged(setting: Setting) -> Setting:
    """The setting without its damage."""
    return Setting(setting.backend, setting.seed, setting.work, setting.shared)


def differences(directory: Path, expected: Path) -> str:
    """Names of what differs between a finished run and an undisturbed one: parameters and states of each
    checkpoint that the undisturbed one has, and the metrics but for times and speeds.

    Of a step that was saved because the run failed then (training/rescue.py) the line may be lost, and so may
    the checkpoint before it that was being saved."""
    names = sorted(path.name for path in expected.iterdir() if path.suffix in (".params", ".npz"))
    assert any(name.endswith(".params") for name in names), "the undisturbed run is not whole"
    rescued = rescued_steps(directory)
    found = [
        name
        for name in names
        if (directory / name).exists()
        and (directory / name).read_bytes() != (expected / name).read_bytes()
        or not (directory / name).exists()
        and not any(0 <= step - int(name.partition(".")[0]) <= 2 for step in rescued)
    ]
    lines = metrics(directory)
    there = {(each["step"], "lr" in each) for each in lines}
    expected_lines = metrics(expected)
    lost = [each for each in expected_lines if (each["step"], "lr" in each) not in there]
    if lines != [each for each in expected_lines if each not in lost or each["step"] not in rescued]:
        found.append("metrics.jsonl")
    return f"not the undisturbed run's: {', '.join(found)}" if found else ""


def rescued_steps(directory: Path) -> set[int]:
    """Steps that were saved because the run failed then, as far as their manifests or the launcher's records
    are still there, and those that the run was resumed after: a manifest may have been pruned, and what was
    saved in a host's memory the launcher does not know."""
    steps = list_steps(str(directory))
    found = {step for step in steps if read_manifest(str(directory), step).get("rescued")}
    found |= {each["step"] for each in json_lines(directory / "restarts.jsonl")}
    lines = json_lines(directory / "metrics.jsonl")
    return found | {each["resumed_at"] for each in lines if "resumed_at" in each}


def metrics(directory: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without times and speeds; without one that is being written."""
    lines = json_lines(directory / "metrics.jsonl")
    return [{name: each[name] for name in each if name not in OF_TIME} for each in lines]


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one on each line; none if there is no file."""
    with contextlib.suppress(FileNotFoundError):
        return read_json_lines(str(path))
    return []


def last_step(directory: Path) -> int:
    """The last step in the metrics; 0 for none."""
    return max((each["step"] for each in metrics(directory) if "lr" in each), default=0)


def wait_for_step(run: Run, directory: Path, step: int) -> None:
    """Waits until a step is in the metrics.

    Raises:
        AssertionError: the run ended before, or it took too long.
    """
    until(lambda: last_step(directory) >= step, run, pause=0.001)


def wait_for_checkpoint(run: Run, directory: Path) -> None:
    """Waits until there is one."""
    until(lambda: list_steps(str(directory)), run)


def find(run: Run, launcher: str, who: int | str) -> int:
    """The process id of a rank (its number), "server" or "scheduler"; waits until it has been started."""

    def found() -> list[int]:
        if launcher != "byteps":
            name = "OMPI_COMM_WORLD_RANK" if launcher == "mpirun" else "HOROVOD_RANK"
            return [pid for pid in run.find(SCRIPTS[launcher]) if f"{name}={who}" in environ_of(pid)]
        if who in ("server", "scheduler"):
            return run.find_role(str(who))
        return run.find_role("worker", DMLC_WORKER_ID=who)

    return until(found, run)[0]


def wait_for_joining(run: Run, launcher: str, who: int) -> None:
    """Until rank `who` has loaded the library with which it joins the others, or the run has ended. On a busy
    machine its imports alone may take as long as the limit to everything that follows."""
    pid = find(run, launcher, who)
    while run.poll() is None and not has_joined(pid, launcher):
        time.sleep(0.05)


def has_joined(pid: int, launcher: str) -> bool:
    """Whether a rank has loaded the library with which it joins the others."""
    library = "/byteps/mxnet/c_lib" if launcher == "byteps" else "/horovod/mxnet/mpi_lib"
    with contextlib.suppress(OSError):
        return library in Path(f"/proc/{pid}/maps").read_text("utf-8", "replace")
    return False


def unfinished(directory: Path) -> list[str]:
    """Names of files that are being written."""
    return [name for name in os.listdir(directory) if UNFINISHED.fullmatch(name)]


def is_stopped(pid: int) -> bool:
    """Whether a process has been stopped by a signal."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] == "T"
    return False


def traces() -> set[str]:
    """Files that BytePS leaves on a machine if nobody prevents it."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("BytePS")} | {
        name for name in os.listdir("/tmp") if name.startswith("socket_")
    }


def patched(script: Path, patch: str, before: str = "") -> str:
    """A script that does what `script` does after `patch`, which is run when the threads are set and can
    import mxnet. `before`: Python that is run before anything of this project is imported; it may change
    `script`, the path."""
    body = "\n".join(f"    {line}" for line in patch.strip().splitlines())
    hook = f"""\
import base.threads
set_threads = base.threads.set_threads
def damage():
{body}
def set_and_damage(*given):
    chosen = set_threads(*given)
    damage()
    return chosen
base.threads.set_threads = set_and_damage
"""
    return f"""\
import os, runpy, sys
script = {str(script)!r}
sys.path.insert(0, {str(ROOT)!r})
{before}
{hook if patch else ""}
sys.argv[0] = script
runpy.run_path(script, run_name="__main__")
"""


def python(*words: Any) -> list[str]:
    """A command of this interpreter."""
    return [sys.executable, *map(str, words)]
