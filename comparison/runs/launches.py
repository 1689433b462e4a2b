"""Launches of the training scripts: their words, checked by the scripts' own rules, and their directories.

launches/SETTING/1/, 2/, ..., profile-1/, ...
    one launch: record.json (written last: without it the launch does not count), run.log, metrics.jsonl,
    trace.json, and the manifest of the last checkpoint, 0000060.json say
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any, Mapping, NamedTuple, Sequence

from base.errors import InputError
from base.files import sha256_of
from base.options import options_in
from comparison.backends import BACKENDS, Backend, Cluster, launch_words
from comparison.campaign import LAUNCHES, Store
from comparison.options import EMBEDDED_LENGTH, EMBEDDED_MODEL, RunsOptions, Trained
from comparison.runs.record import METRICS, PROFILED, TIMED, TRACE, Record, Steps, Work
from comparison.settings import Setting
from data import embedded
from training.checkpoint import manifest_name
from training.inputs import check_inputs
from training.options import parse_options as parse_script_options
from training.options import run_config
from training.profiling.profiler import LAST

RECORD = "record.json"
_CKPT = "ckpt"  # below a launch's directory
_OWN = [f"--{name}" for name in options_in(Trained)]  # compare.py's own: to be given before --
_OWN_AXES = {"--batch_size": "--batch_sizes", "--dtype": "--dtypes", "--num_steps": "--steps",
             "--log_interval": "--log_interval", "--seed": "--seed"}  # fmt: skip
# Every launch begins anew, in a directory of its own, and does nothing besides training.
_EXCLUDED = (
    *("--ckpt_dir", "--ckpt_interval", "--keep_checkpoints", "--keep_interval", "--resume", "--start_step"),
    *("--data_eval", "--eval_use_npz", "--batch_size_eval", "--profile", "--progress", "--verbose"),
)
# Losses that move at once show a wrong gradient sooner; so small a batch is not in the paper's table.
_EMBEDDED_SCHEDULE = {"--lr": "0.014", "--warmup_ratio": "0.1"}


class Training(NamedTuple):
    """Options and facts that all launches have in common.

    `words`: options of the scripts. `facts`: what these mean, for the report. `prepares`: whether the data is
    tokenized or converted before the first step, and `pretrained` whether the model is read from files.
    `files`: the data and vocabularies that are read.
    """

    words: tuple[str, ...]
    steps: Steps
    seed: int
    facts: Mapping[str, Any] = MappingProxyType({})
    prepares: bool = False
    pretrained: bool = False
    files: tuple[Path, ...] = ()

    def command(
        self, work: Work, backend: Backend, cluster: Cluster | None, directory: Path
    ) -> tuple[str, ...]:
        """All words of a launch. `directory` exists."""
        words = launch_words(backend, work.setting.workers, cluster, directory)
        return (*words, sys.executable, str(backend.script), *self.script_words(work, directory))

    def preparation(self, setting: Setting, directory: Path) -> list[str] | None:
        """The command that tokenizes or converts the data once, by taking a step with it; None where there
        is nothing to do. Then no launch begins later than another because it had to."""
        if not self.prepares:
            return None
        words = self.script_words(Work(setting, TIMED, 0), directory)
        changes = ["--num_steps", "1"]  # of two the later one counts
        if not self.pretrained and "--model" in words:
            changes += ["--model", "bert_1_32_2"]
        return [sys.executable, str(BACKENDS["hvd_mpi"].script), *words, *changes]

    def steps_of(self, work: Work) -> Steps:
        return Steps(LAST, 0, LAST) if work.kind == PROFILED else self.steps

    def script_words(self, work: Work, directory: Path) -> list[str]:
        """The script's options for a launch that leaves its files in `directory`."""
        total, _, interval = self.steps_of(work)
        profile = ["--profile", str(directory / TRACE)] if work.kind == PROFILED else []
        _, _, dtype, batch_size = work.setting
        return [
            *self.words,
            *("--dtype", dtype, "--batch_size", str(batch_size)),
            *("--num_steps", str(total), "--log_interval", str(interval), "--ckpt_interval", str(total)),
            *("--seed", str(self.seed), "--progress", "lines", "--ckpt_dir", str(directory / _CKPT)),
            *profile,
        ]


def plan_training(options: RunsOptions) -> Training:
    """Settles what is trained, and checks it with the training scripts' own rules for every setting. Builds
    the embedded text under --output where no data is named.

    Raises:
        InputError: an option, or a file, that the scripts would reject.
    """
    directory, steps = Path(options.output).resolve(), options.lines
    training = Training(_shared_words(options, directory), steps, options.seed)
    works = [Work(setting, TIMED, 0) for setting in options.settings]
    script, *_ = [parse_script_options(training.script_words(work, directory / "none"), "") for work in works]
    config = run_config(script)
    inputs = check_inputs(config)
    vocabularies = [each for each in (script.vocab, script.sentencepiece) if each]
    return training._replace(
        facts={
            **config.model.bert.facts(),
            "vocab_size": inputs.vocab_size,
            "max_seq_length": inputs.max_seq_length,
            "use_avg_len": script.use_avg_len,
            "accumulate": script.accumulate,
            "compression": script.compression,
            "reproducible": script.reproducible,
            "num_steps": steps.total,
            "warmup_steps": steps.warm_up,
            "log_interval": steps.interval,
        },
        prepares=not script.dummy_data_len and inputs.train.kind in ("text", "instances"),
        pretrained=bool(script.pretrained),
        files=tuple(map(Path, (*inputs.train.paths, *vocabularies))),
    )


def _shared_words(options: RunsOptions, output: Path) -> tuple[str, ...]:
    """Options of the scripts that all launches have."""
    given = [word.partition("=")[0] for word in options.script_args if word.startswith("--")]
    for name in given:
        if name in _OWN:
            raise InputError(f"{name} after --: is an option of compare.py, too; give it before --")
        if name in _OWN_AXES:
            raise InputError(f"{name} after --: compare.py sets it; use {_OWN_AXES[name]} before --")
        if name in _EXCLUDED:
            raise InputError(f"{name} after --: compare.py decides it for each launch; leave it out")
    words = list(options.script_args)
    own: dict[str, Any] = {flag: getattr(options, flag[2:]) for flag in _OWN}
    if options.data is None and "--dummy_data_len" not in given:
        for flag in ("--raw", "--vocab"):
            if own[flag]:
                raise InputError(f"{flag}: is for --data, which was left out")
        folder = output / "embedded"
        embedded.build(str(folder))
        own.update({"--data": str(folder / "corpus" / "train-*.txt"), "--vocab": str(folder / "vocab.txt")})
        own.update({"--raw": True, "--use_avg_len": True})
        own["--max_seq_length"] = own["--max_seq_length"] or EMBEDDED_LENGTH
        for flag, value in _EMBEDDED_SCHEDULE.items():
            if flag not in given:
                words += [flag, value]
    if "--config_file" not in given:
        own["--model"] = own["--model"] or EMBEDDED_MODEL
    for flag, value in own.items():
        if value is True:
            words.append(flag)
        elif value not in (None, False):
            words += [flag, str(value)]
    if "--cache_dir" not in given:
        words += ["--cache_dir", str(output / "tokens")]
    return tuple(words)


def identity(training: Training, folder: Path) -> dict[str, Any]:
    """The scripts' options, and the files that are read with their sizes and the times of their last changes:
    a second call must see the same. What lies below `folder`, the comparison's, is named from there and has
    its checksum in place of the time, so that a folder that was moved or copied can be continued."""
    prefix, files = f"{folder}{os.sep}", []

    def within(name: str) -> str:
        return name[len(prefix) :] if name.startswith(prefix) else name

    for path in training.files:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                name, stat = str(file.resolve()), file.stat()
                state = sha256_of(name) if name.startswith(prefix) else stat.st_mtime_ns
                files.append([within(name), stat.st_size, state])
    return {"script options": list(map(within, training.words)), "data": files}


def path_of(work: Work) -> str:
    """The directory of a launch, in that of the campaign."""
    number = str(work.repeat + 1)
    name = f"profile-{number}" if work.kind == PROFILED else number
    return f"{LAUNCHES}/{work.setting.name}/{name}"


def make_directory(store: Store, work: Work) -> Path:
    """An empty directory for a launch; what a launch that was not finished has left there is removed."""
    directory = store.directory / path_of(work)
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    return directory


def keep_outcome(directory: Path, step: int) -> None:
    """Keeps the metrics of the checkpoint directory and the manifest of the last checkpoint, that of `step`:
    it has the checksum of the parameters."""
    for name in (METRICS, manifest_name(step)):
        if (directory / _CKPT / name).exists():
            os.replace(directory / _CKPT / name, directory / name)
    remove_checkpoints(directory)


def remove_checkpoints(directory: Path) -> None:
    shutil.rmtree(directory / _CKPT, ignore_errors=True)


def save(store: Store, record: Record) -> None:
    work = Work(record.setting, record.kind, record.repeat)
    store.save(f"{path_of(work)}/{RECORD}", record)


def finished(store: Store, works: Sequence[Work]) -> dict[Work, Record]:
    """Those of the launches that were made before. Raises InputError for a damaged record."""
    records = {work: store.load(f"{path_of(work)}/{RECORD}", Record.from_json) for work in works}
    return {work: record for work, record in records.items() if record is not None}
