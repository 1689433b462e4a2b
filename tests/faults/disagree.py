"""Starts runs whose ranks disagree, in one thing at a time, and says how each was met (figure 11).

All must end with code 2 and one line that names the difference, both values and the ranks, within seconds.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Sequence
from unittest import mock

from tests.faults.figure import Attempt, Damage, Program, Setting, Tally
from tests.faults.jobs import corpus, named, parsed
from tests.processes import ROOT, RunResult, run_ranks, words_of

SCRIPTS = {
    "mpirun": "run_pretraining_hvd.py",
    "gloo": "run_pretraining_hvd.py",
    "byteps": "run_pretraining_byteps.py",
}
LINES = 600  # of text
# Executed by the rank that differs, before anything of this project is imported.
_OTHER_VERSION = "import platform; platform.python_version = lambda: '3.0.0'"
_OTHER_CODE = "sys.path.insert(0, {code!r}); script = os.path.join({code!r}, script)"
_STARTER = """
import os, runpy, sys
script, words, change = {script!r}, {words!r}, {change!r}
sys.path.insert(0, {root!r})
sys.argv = [script, *sys.argv[1:]]
rank = next(os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "DMLC_WORKER_ID")
            if name in os.environ)
script = os.path.join({root!r}, script)
if int(rank) == {differs}:
    sys.argv += words
    exec(change)
runpy.run_path(script, run_name="__main__")
"""


class Files(NamedTuple):
    """Texts and vocabularies in a folder: two of each that differ."""

    folder: Path
    text: Path
    other_text: Path
    other_byte: Path  # in one byte of its middle
    vocabulary: Path
    shuffled: Path  # the same tokens, two of them exchanged
    code: Path  # a copy of the source files, with a comment more in one


class Kind(NamedTuple):
    """A disagreement: words added to one rank's command line, or a change of it before it starts; and the
    name that the message must have."""

    words: Sequence[str]
    named: str
    change: str = ""


class Outcome(NamedTuple):
    """The end of a run that should have been rejected. `fault` is empty where it was."""

    kind: str
    fault: str
    seconds: float
    message: str


def make_files(folder: Path, text: Path, vocabulary: Path) -> Files:
    """Files made from a text and a WordPiece vocabulary."""
    lines = text.read_text(encoding="utf-8").splitlines(keepends=True)[:LINES]
    found = Files(folder, *(folder / name for name in ("a.txt", "b.txt", "c.txt", "v.txt", "w.txt", "code")))
    folder.mkdir(parents=True, exist_ok=True)
    content = "".join(lines)
    found.text.write_text(content)
    found.other_text.write_text("".join(lines[::-1]))
    middle = content.index("e", len(content) // 3)
    found.other_byte.write_text(content[:middle] + "a" + content[middle + 1 :])
    tokens = vocabulary.read_text(encoding="utf-8").splitlines(keepends=True)
    found.vocabulary.write_text("".join(tokens))
    tokens[-1], tokens[-2] = tokens[-2], tokens[-1]
    found.shuffled.write_text("".join(tokens))
    patterns = (
        "*.py",
        *(f"{name}/**/*.py" for name in ("base", "bert", "comm", "data", "tasks", "training")),
    )
    for path in (path for pattern in patterns for path in ROOT.glob(pattern)):
        copy = found.code / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    with (found.code / "training" / "step.py").open("a") as file:
        file.write("# changed\n")
    return found


def arguments(files: Files, ckpt_dir: Path, **changes: Any) -> list[str]:
    """The command line that the ranks have in common."""
    options: dict[str, Any] = {
        "raw": True,
        "data": files.text, "vocab": files.vocabulary, "model": "bert_1_32_2", "max_seq_length": 32,
        "batch_size": 4, "num_buckets": 2, "num_data_workers": 1, "num_steps": 3, "lr": 0.001,
        "warmup_ratio": 0.1, "log_interval": 1, "ckpt_interval": 3, "peak_tflops": 1, "comm_timeout": 120,
        "ckpt_dir": ckpt_dir, "cache_dir": files.folder / "tokens", **changes,
    }  # fmt: skip
    return words_of(options)


def kinds(files: Files) -> Mapping[str, Kind]:
    """All kinds of disagreement, by name."""
    options: dict[str, Any] = {
        "seed": 7, "lr": 0.5, "accumulate": 2, "batch_size": 2, "dropout": 0.3, "optimizer": "bertadam",
        "clip_norm": 5, "max_seq_length": 16, "operators": "mxnet", "dtype": "float32",
        "masked_lm_prob": 0.3, "num_steps": 4, "warmup_ratio": 0.5, "log_interval": 2, "ckpt_interval": 2,
        "num_buckets": 3, "short_seq_prob": 0.4, "end_lr": 0.0001, "compression": "fp16",
        "max_predictions_per_seq": 3, "peak_tflops": 2, "start_step": 3, "dummy_data_len": 16,
    }  # fmt: skip
    found = {name: Kind([f"--{name}", str(value)], f"--{name}") for name, value in options.items()}
    for flag in ("bias_correction", "use_avg_len", "whole_word_mask", "split_sentences", "static_masks"):
        found[flag] = Kind([f"--{flag}"], f"--{flag}")
    found["heads"] = Kind(["--model", "bert_1_32_4"], "--model")
    found["layers"] = Kind(["--model", "bert_2_32_2"], "--model")
    found["another text"] = Kind(["--data", str(files.other_text)], "the content of --data")
    found["a byte of the text"] = Kind(["--data", str(files.other_byte)], "the content of --data")
    found["shuffled vocabulary"] = Kind(["--vocab", str(files.shuffled)], "the vocabulary")
    found["held-out text"] = Kind(["--data_eval", str(files.text)], "--data_eval")
    found["code"] = Kind([], "training/step.py", _OTHER_CODE.format(code=str(files.code)))
    found["version"] = Kind([], "the version of python", _OTHER_VERSION)
    del found["start_step"]  # ends before the ranks have met: there is no such checkpoint
    return found


def disagree(launcher: str, files: Files, kind: Kind, ckpt_dir: Path, differs: int = 1) -> RunResult:
    """Starts two ranks, of which the one numbered `differs` differs."""
    code = _STARTER.format(
        script=SCRIPTS[launcher], words=list(kind.words), change=kind.change, root=str(ROOT), differs=differs
    )
    return run_ranks(code, 2, launcher, args=arguments(files, ckpt_dir))


def fault_of(launcher: str, result: RunResult, kind: Kind, ckpt_dir: Path) -> str:
    """The reason why a run was not rejected as it should; empty where it was."""
    said = [
        line
        for text in (result.stderr, *(rank.stderr for rank in result.ranks))
        for line in text.splitlines()
        if "the ranks do not agree" in line
    ]
    if result.timed_out:
        return "it had to be ended"
    if result.returncode == 0:
        return "it trained"
    if launcher != "gloo" and result.returncode != 2:  # horovodrun itself ends with 1
        return f"it ended with {result.returncode}"
    if not said:
        return f"nobody says why it ended with {result.returncode}"
    if not any(kind.named in line and "rank 0" in line and "rank 1" in line for line in said):
        return f"not named: {kind.named}"
    if any(ckpt_dir.glob("*.params")):
        return "it saved"
    return ""


def attack(launcher: str, files: Files, name: str, differs: int = 1) -> Outcome:
    """One run with the disagreement `name`."""
    kind = kinds(files)[name]
    ckpt_dir = Path(tempfile.mkdtemp(prefix="ckpt-", dir=files.folder))
    result = disagree(launcher, files, kind, ckpt_dir, differs)
    lines = [line for line in result.stderr.splitlines() if "do not agree" in line] or [""]
    return Outcome(name, fault_of(launcher, result, kind, ckpt_dir), result.seconds, lines[0])


# --- The figure.


NOT_COMPARED = "the ranks do not compare what they are about to do"
CONTENT = "of vocabularies and data only the names are compared"
COMPARED = {
    NOT_COMPARED: "None",
    CONTENT: "agree({name: each for name, each in given[0].items() if name.startswith('--')}, *given[1:])",
}
PATCH = """
import base.threads
_set_threads = base.threads.set_threads
def _set_and_damage(*given):
    chosen = _set_threads(*given)
    import training.agreement, training.run, training.train, training.inputs
    agree = training.agreement.agree
    for module in (training.agreement, training.run, training.train, training.inputs):
        if hasattr(module, "agree"):
            module.agree = lambda *given, **named: COMPARED
    return chosen
base.threads.set_threads = _set_and_damage
"""
RUNPY = "runpy.run_path("


def cases(setting: Setting) -> Iterator[str]:
    """Every kind of disagreement, of either rank."""
    text = corpus(setting)
    files = make_files(setting.work / "names", text / "corpus" / "eval.txt", text / "vocab.txt")
    every = [named(differs=rank, kind=kind) for kind in kinds(files) for rank in (1, 0)]
    random.Random(setting.seed).shuffle(every)
    return iter(every)


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case: a run of two ranks, of which one differs."""
    text = corpus(setting)
    files = make_files(setting.work / "files", text / "corpus" / "eval.txt", text / "vocab.txt")
    starter = _STARTER
    if setting.damage:
        patch = PATCH.strip().replace("COMPARED", COMPARED[setting.damage])
        starter = starter.replace(RUNPY, f"{patch}\n{RUNPY}".replace("{", "{{").replace("}", "}}"), 1)

    def attempt(case: str) -> Tally:
        parts = parsed(case)
        outcome = attack(setting.launcher, files, parts["kind"], int(parts["differs"]))
        return Tally.of(outcome.fault and f"{outcome.fault}: {outcome.message}")

    with mock.patch.object(sys.modules[__name__], "_STARTER", starter):
        yield attempt


CASE = named(differs=1, kind="lr")
UNNOTICED = "it trained|nobody says|it saved|had to be ended"
PROGRAM = Program(
    "11",
    "ranks that disagree: options, data, vocabulary, code, versions",
    "rejected with 2, naming what differs and where",
    weight=0.7,
    seconds=15,
    cases=cases,
    opened=opened,
    damages={
        NOT_COMPARED: Damage(CASE, UNNOTICED),
        CONTENT: Damage(named(differs=1, kind="shuffled vocabulary"), UNNOTICED),
    },
)
