"""A training run of seconds that figures attack: two ranks, both stages, text of this project's own."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

from data.embedded import build
from tests.faults.figure import Setting
from tests.faults.kill_at_boundary import metrics
from tests.processes import ROOT, Run, start_ranks, words_of

SCRIPTS = {"hvd": "run_pretraining_hvd.py", "byteps": "run_pretraining_byteps.py"}
STEPS = (10, 10)  # of the stages
LAST = sum(STEPS)
INTERVAL = 4  # of checkpoints: some kills come long after one, some right behind it
SECONDS = 600.0  # against a hang: within which a run has ended, on a busy machine too
TIMEOUT = 5  # --comm_timeout
LIMIT = 30.0  # seconds from a failure, or from when it can be noticed, to the end of the last process
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def corpus(setting: Setting) -> Path:
    """The embedded text with a small vocabulary and its cache, made once."""
    folder = setting.shared / "embedded"
    folder.mkdir(exist_ok=True)
    build(str(folder), vocab_size=1024)
    return folder


@dataclass(frozen=True)
class Job:
    """A run of two stages. `patch`: Python that is run in each rank before the script's own work, to damage
    it; empty for none."""

    setting: Setting
    accumulate: int = 1
    patch: str = ""

    @property
    def script(self) -> Path:
        """The script of the backend, behind the patch if there is one."""
        name = SCRIPTS[self.setting.backend.partition("_")[0]]
        if not self.patch:
            return ROOT / name
        folder = self.setting.work / "patched"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(patched(ROOT / name, self.patch), encoding="utf-8")
        return folder / name

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

    def start(self, directory: Path, **options: Any) -> Run:
        """Starts or resumes the run; `options` as of `start_ranks`."""
        launcher = starter(self.setting)
        given = {"timeout": SECONDS, "env": ONE_THREAD, "grace": 15.0, **options}
        return start_ranks(self.script, 2, launcher, args=self.words(directory), **given)


def starter(setting: Setting) -> str:
    """The launcher's name in tests/processes.py: mpirun is started by the project's own launcher."""
    own = (ROOT / "hosts" / "launch.py").exists()
    return "launch" if setting.launcher == "mpirun" and own else setting.launcher


def whole(setting: Setting, accumulate: int = 1) -> Path:
    """The directory of an undisturbed, undamaged run, made once for a backend.

    Raises:
        AssertionError: it failed.
    """
    directory = setting.shared / f"whole-{setting.backend}-{accumulate}"
    if not (directory / f"{LAST:07d}.json").exists():
        with Job(setting, accumulate).start(directory) as run:
            run.wait().check()
    return directory


def differences(directory: Path, expected: Path) -> str:
    """Names of what differs between a finished run and an undisturbed one: parameters and states of each
    checkpoint that the undisturbed one has, and the metrics but for times and speeds."""
    names = sorted(path.name for path in expected.iterdir() if path.suffix in (".params", ".npz"))
    assert f"{LAST:07d}.params" in names, "the undisturbed run is not whole"
    found = [
        name
        for name in names
        if not (directory / name).exists()
        or (directory / name).read_bytes() != (expected / name).read_bytes()
    ]
    if metrics(directory) != metrics(expected):
        found.append("metrics.jsonl")
    return f"not the undisturbed run's: {', '.join(found)}" if found else ""


def patched(script: Path, patch: str) -> str:
    """A script that does what `script` does after `patch`, which is run when the threads are set and can
    import mxnet."""
    body = "\n".join(f"    {line}" for line in patch.strip().splitlines())
    return f"""\
import runpy, sys
sys.path.insert(0, {str(ROOT)!r})
import base.threads
set_threads = base.threads.set_threads
def damage():
{body}
def set_and_damage(*given):
    chosen = set_threads(*given)
    damage()
    return chosen
base.threads.set_threads = set_and_damage
sys.argv[0] = {str(script)!r}
runpy.run_path({str(script)!r}, run_name="__main__")
"""


def parsed(case: str) -> dict[str, str]:
    """The parts of a case's name, `name=value,name=value`."""
    return dict(part.split("=", 1) for part in case.split(","))


def named(**parts: Any) -> str:
    """A case's name."""
    return ",".join(f"{name}={value}" for name, value in parts.items())


def python(*words: Any) -> Sequence[str]:
    """A command of this interpreter."""
    return [sys.executable, *map(str, words)]
