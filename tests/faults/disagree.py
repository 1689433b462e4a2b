"""Starts runs whose ranks disagree, in one thing at a time, and says how each was met (figure 11).

All must end with code 2 and one line that names the difference, both values and the ranks, within seconds.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from tests.faults.figure import Damage, Parts, Program, Setting, Tally, named, shuffled
from tests.faults.jobs import SCRIPTS, corpus, patched
from tests.processes import ROOT, RunResult, run_ranks, words_of

LINES = 600  # of text
# Executed by the rank that differs, before anything of this project is imported.
_OTHER_VERSION = "import platform; platform.python_version = lambda: '3.0.0'"
_OTHER_CODE = "sys.path.insert(0, {code!r}); script = os.path.join({code!r}, os.path.basename(script))"
_BEFORE = """
rank = next(os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "DMLC_WORKER_ID")
            if name in os.environ)
if int(rank) == {differs}:
    sys.argv += {words!r}
    {change}
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
    change: str = "pass"


class Outcome(NamedTuple):
    """The end of a run that should have been rejected. `fault` is empty where it was."""

    kind: str
    fault: str
    seconds: float
    message: str


def make_files(folder: Path, text: Path, vocabulary: Path) -> Files:
    """Files made from a text and a WordPiece vocabulary, once."""
    lines = text.read_text(encoding="utf-8").splitlines(keepends=True)[:LINES]
    found = Files(folder, *(folder / name for name in ("a.txt", "b.txt", "c.txt", "v.txt", "w.txt", "code")))
    if found.code.exists():
        return found
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
    flags = "bias_correction use_avg_len whole_word_mask split_sentences static_masks shard_states"
    for flag in flags.split():
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


def disagree(
    launcher: str, files: Files, kind: Kind, ckpt_dir: Path, differs: int = 1, patch: str = ""
) -> RunResult:
    """Starts two ranks, of which the one numbered `differs` differs."""
    before = _BEFORE.format(words=list(kind.words), change=kind.change, differs=differs)
    code = patched(ROOT / SCRIPTS[launcher], patch, before)
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
        errors = [line for line in result.stderr.splitlines() if "error: " in line]
        return f"it ended with {result.returncode}: {''.join(errors[:1])}"
    if not said:
        return f"nobody says why it ended with {result.returncode}"
    if not any(kind.named in line and "rank 0" in line and "rank 1" in line for line in said):
        return f"not named: {kind.named}"
    if any(ckpt_dir.glob("*.params")):
        return "it saved"
    return ""


def attack(launcher: str, files: Files, name: str, differs: int = 1, patch: str = "") -> Outcome:
    """One run with the disagreement `name`; `patch` damages it."""
    kind = kinds(files)[name]
    ckpt_dir = Path(tempfile.mkdtemp(prefix="ckpt-", dir=files.folder))
    result = disagree(launcher, files, kind, ckpt_dir, differs, patch)
    lines = [line for line in result.stderr.splitlines() if "do not agree" in line] or [""]
    return Outcome(name, fault_of(launcher, result, kind, ckpt_dir), result.seconds, lines[0])


# --- The figure.


PATCH = """
import training.agreement, training.run, training.train, training.inputs
agree = training.agreement.agree
for module in (training.agreement, training.run, training.train, training.inputs):
    if hasattr(module, "agree"):
        module.agree = lambda *given, **named: COMPARED
"""
BY_NAME = "agree({name: each for name, each in given[0].items() if name.startswith('--')}, *given[1:])"


def files_of(setting: Setting) -> Files:
    """The files of the figure, made once."""
    text, folder = corpus(setting), setting.shared / "disagree"
    return make_files(folder, text / "corpus" / "eval.txt", text / "vocab.txt")


def cases(setting: Setting) -> list[str]:
    """Every kind of disagreement, of either rank."""
    return shuffled(
        (named(differs=rank, kind=kind) for kind in kinds(files_of(setting)) for rank in (1, 0)), setting
    )


def attempt(setting: Setting, parts: Parts) -> Tally:
    """A run of two ranks, of which one differs."""
    differs, files = int(parts["differs"]), files_of(setting)
    outcome = attack(setting.launcher, files, parts["kind"], differs, setting.patch)
    return Tally.of(outcome.fault and f"{outcome.fault}: {outcome.message}")


# A difference that nobody compares may show at the first checkpoint.
UNNOTICED = "it trained|nobody says|it saved|had to be ended|parameters or optimizer states .* are not"
PROGRAM = Program(
    "11",
    "ranks that disagree: options, data, vocabulary, code, versions",
    "rejected with 2, naming what differs and where",
    weight=0.7,
    seconds=15,
    cases=cases,
    attempt=attempt,
    damages={
        "the ranks do not compare what they are about to do": Damage(
            named(differs=1, kind="lr"), UNNOTICED, PATCH.replace("COMPARED", "None")
        ),
        "of vocabularies and data only the names are compared": Damage(
            named(differs=1, kind="shuffled vocabulary"), UNNOTICED, PATCH.replace("COMPARED", BY_NAME)
        ),
    },
)
