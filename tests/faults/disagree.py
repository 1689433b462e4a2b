"""Starts runs whose ranks disagree, in one thing at a time, and says how each was met (figure 11).

All must end with code 2 and one line that names the difference, both values and the ranks, within seconds.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from tests.faults.figure import Damage, Parts, Program, Setting, Tally, named, shuffled
from tests.faults.jobs import SCRIPTS, Job, corpus, patched
from tests.processes import ROOT, RunResult, run_ranks

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


def files_of(setting: Setting) -> Files:
    """The files of the figure, made once of the embedded text and its vocabulary."""
    source, folder = corpus(setting), setting.shared / "disagree"
    found = Files(folder, *(folder / name for name in ("a.txt", "b.txt", "c.txt", "v.txt", "w.txt", "code")))
    if found.code.exists():
        return found
    folder.mkdir(exist_ok=True)
    text = (source / "corpus" / "eval.txt").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)[:LINES]
    content = "".join(lines)
    found.text.write_text(content)
    found.other_text.write_text("".join(lines[::-1]))
    middle = content.index("e", len(content) // 3)
    found.other_byte.write_text(content[:middle] + "a" + content[middle + 1 :])
    tokens = (source / "vocab.txt").read_text(encoding="utf-8").splitlines(keepends=True)
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


def kinds(files: Files) -> Mapping[str, Kind]:
    """All kinds of disagreement, by name."""
    options: dict[str, Any] = {
        "seed": 7, "lr": 0.5, "accumulate": 2, "batch_size": 2, "dropout": 0.3, "optimizer": "bertadam",
        "clip_norm": 5, "max_seq_length": 16, "operators": "mxnet", "dtype": "float32",
        "masked_lm_prob": 0.3, "num_steps": 4, "warmup_ratio": 0.5, "log_interval": 2, "ckpt_interval": 2,
        "num_buckets": 3, "short_seq_prob": 0.4, "end_lr": 0.0001, "compression": "fp16",
        "max_predictions_per_seq": 3, "peak_tflops": 2, "dummy_data_len": 16,
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
    return found


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


# --- The figure.


PATCH = """
import training.agreement, training.run, training.train, training.inputs
agree = training.agreement.agree
for module in (training.agreement, training.run, training.train, training.inputs):
    if hasattr(module, "agree"):
        module.agree = lambda *given, **named: COMPARED
"""
BY_NAME = "agree({name: each for name, each in given[0].items() if name.startswith('--')}, *given[1:])"


def cases(setting: Setting) -> list[str]:
    """Every kind of disagreement, of either rank."""
    return shuffled(
        (named(differs=rank, kind=kind) for kind in kinds(files_of(setting)) for rank in (1, 0)), setting
    )


def attempt(setting: Setting, parts: Parts) -> Tally:
    """A run of two ranks, of which the one numbered `differs` differs."""
    launcher, files, ckpt_dir = setting.launcher, files_of(setting), setting.folder("run")
    kind = kinds(files)[parts["kind"]]
    before = _BEFORE.format(words=list(kind.words), change=kind.change, differs=parts["differs"])
    code = patched(ROOT / SCRIPTS[launcher], setting.patch, before)
    words = Job(setting).words(
        ckpt_dir, resume=None, stages=None, data=files.text, data_eval=None, vocab=files.vocabulary,
        cache_dir=files.folder / "tokens", max_seq_length=32, batch_size=4, num_steps=3, lr=0.001,
        warmup_ratio=0.1, ckpt_interval=3, comm_timeout=120,
    )  # fmt: skip
    result = run_ranks(code, 2, launcher, args=words)
    fault = fault_of(launcher, result, kind, ckpt_dir)
    said = [line for line in result.stderr.splitlines() if "do not agree" in line] or [""]
    return Tally.of(fault and f"{fault}: {said[0]}")


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
