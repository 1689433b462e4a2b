"""Kills a run of two stages around the boundary, resumes it, and compares it with an undisturbed one.

Every process of the run gets SIGKILL as soon as its directory shows the moment. Compared is what must not
differ by one bit: parameters and states at the end of each stage, and metrics.jsonl but for times and speeds.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from tests.processes import OF_TIME, ROOT, start_ranks, words_of

FIRST, SECOND = 6, 6  # steps of the stages
END = FIRST + SECOND
SCRIPTS = {"hvd": "run_pretraining_hvd.py", "byteps": "run_pretraining_byteps.py"}
LAUNCHERS = {"hvd": "mpirun", "byteps": "byteps"}
Moment = Callable[[Path], bool]


class Job(NamedTuple):
    """A run: its backend and ranks, and the words of its command line but for --ckpt_dir and --resume."""

    backend: str
    ranks: int
    words: Sequence[str]

    def start(self, directory: Path, *more: str) -> Any:
        """Starts it, in `directory`."""
        words = [*self.words, "--ckpt_dir", str(directory), *more]
        script = ROOT / SCRIPTS[self.backend]
        return start_ranks(script, self.ranks, LAUNCHERS[self.backend], args=words)


class Outcome(NamedTuple):
    """A kill: the newest complete checkpoint and lines of metrics at that time; differences in the end."""

    moment: str
    newest: int
    lines: int
    differences: list[str]


def job(backend: str, ranks: int, corpus: Path) -> Job:
    """Both stages over the embedded text in `corpus` (of data.embedded), of a few seconds."""
    text = str(corpus / "corpus" / "eval.txt")
    options = {
        "raw": True, "stages": "both", "data": text, "data_eval": text, "vocab": corpus / "vocab.txt",
        "cache_dir": corpus / "tokens", "model": "bert_1_32_2", "max_seq_length": "16,64",
        "batch_size": "8,2",
        "num_buckets": 2, "num_steps": f"{FIRST},{SECOND}",
        "lr": "0.02,0.01", "warmup_ratio": "0.2,0.5",
        "log_interval": 1, "ckpt_interval": 3, "seed": 3, "progress": "lines", "peak_tflops": 1,
    }  # fmt: skip
    return Job(backend, ranks, words_of(options))


def _file(name: str) -> Moment:
    return lambda directory: any(directory.glob(name))


def _line(step: int, stage: int, figure: str) -> Moment:
    return lambda directory: any(
        (each["step"], each["stage"]) == (step, stage) and figure in each for each in _lines(directory)
    )


# In the order of a run.
MOMENTS: dict[str, Moment] = {
    "stage 1 is about to end": _line(FIRST - 1, 1, "lr"),
    "its last step is logged": _line(FIRST, 1, "lr"),
    "its end is being saved": _file(f"{FIRST:07d}.*.tmp-*"),
    "its parameters are in place": _file(f"{FIRST:07d}.params"),
    "its end is saved": _file(f"{FIRST:07d}.json"),
    "its end is evaluated": _line(FIRST, 1, "eval_mlm_loss"),
    "its plot is drawn": _file("loss.png"),
    "stage 2 is being opened": _file("tensorboard/*.stage2"),
    "stage 2 is evaluated before its first step": _line(FIRST, 2, "eval_mlm_loss"),
    "its first step is logged": _line(FIRST + 1, 2, "lr"),
    "its first checkpoint is being saved": _file(f"{FIRST + 3:07d}.*.tmp-*"),
    "its first checkpoint is saved": _file(f"{FIRST + 3:07d}.json"),
}


def kill_and_resume(work: Job, directory: Path, moment: str, whole: Path) -> Outcome:
    """Starts a run in `directory`, kills its processes at a moment, resumes it, compares it with `whole`.

    Raises:
        AssertionError: the run ended, or took too long, before the moment; or the resumed one failed.
    """
    with work.start(directory, "--resume") as run:
        run.kill_when(lambda: directory.is_dir() and MOMENTS[moment](directory))
    complete = [int(each.stem) for each in directory.glob("[0-9]*.json")]
    lines = len(_lines(directory))
    with work.start(directory, "--resume") as run:
        run.wait().check()
    return Outcome(moment, max(complete, default=0), lines, differences(directory, whole))


def differences(directory: Path, whole: Path) -> list[str]:
    """Names of what differs between two finished runs."""
    names = [f"{step:07d}{end}" for step in (FIRST, END) for end in (".params", ".states.npz")]
    found = [name for name in names if (directory / name).read_bytes() != (whole / name).read_bytes()]
    if metrics(directory) != metrics(whole):
        found.append("metrics.jsonl")
    return found


def metrics(directory: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without times and speeds."""
    return [{name: each[name] for name in each if name not in OF_TIME} for each in _lines(directory)]


def _lines(directory: Path) -> list[Mapping[str, Any]]:
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in (directory / "metrics.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError):  # it is being written
                found.append(json.loads(line))
    return found
