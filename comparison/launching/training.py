"""What the training scripts are told: the words of a launch, and what they will read."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple, Sequence

from base.errors import InputError
from comparison.launching.backends import BACKENDS, Backend, Cluster, launch_words
from comparison.launching.read_run import TRACE, Steps, Work
from comparison.options import EMBEDDED_LENGTH, EMBEDDED_MODEL
from comparison.record import PROFILED, TIMED
from comparison.settings import Setting
from data import embedded
from training.config import run_config
from training.inputs import Inputs, check_inputs
from training.options import parse_options as parse_script_options
from training.profiling.profiler import LAST

CKPT = "ckpt"  # below a launch's directory
# compare.py's own options: to be given before --.
_OWN = ("--model", "--data", "--raw", "--vocab", "--max_seq_length", "--use_avg_len", "--accumulate")
_OWN_AXES = {"--batch_size": "--batch_sizes", "--dtype": "--dtypes", "--num_steps": "--steps",
             "--log_interval": "--log_interval", "--seed": "--seed"}  # fmt: skip
# Every launch begins anew, in a directory of its own, and does nothing besides training.
_REFUSED = (
    *("--ckpt_dir", "--ckpt_interval", "--keep_checkpoints", "--resume", "--start_step"),
    *("--data_eval", "--eval_use_npz", "--batch_size_eval", "--profile", "--progress", "--verbose"),
)
# Losses that move at once tell a wrong gradient sooner; so small a batch is not in the paper's table.
_EMBEDDED_SCHEDULE = {"--lr": "0.014", "--warmup_ratio": "0.1"}


class Training(NamedTuple):
    """`words`: options that all launches share. `options`, `inputs`: what they mean to the scripts, with the
    first setting's dtype and batch size."""

    words: tuple[str, ...]
    options: argparse.Namespace
    inputs: Inputs
    steps: Steps
    seed: int

    def command(
        self, work: Work, backend: Backend, cluster: Cluster | None, directory: Path
    ) -> tuple[str, ...]:
        """All words of a launch. `directory` exists."""
        words = launch_words(backend, work.setting.workers, cluster, directory)
        return (*words, sys.executable, str(backend.script), *self._script_words(work, directory))

    def preparation(self, setting: Setting, directory: Path) -> list[str] | None:
        """The command that tokenizes or converts the data once, by taking a step with it; None where there
        is nothing to do. Then no launch begins later than another because it had to."""
        if self.options.dummy_data_len or self.inputs.train.kind not in ("text", "instances"):
            return None
        words = self._script_words(Work(setting, TIMED, 0), directory)
        changes = ["--num_steps", "1"]  # of two the later one counts
        if not self.options.pretrained:
            changes += ["--model", "bert_1_32_2"]
        return [sys.executable, str(BACKENDS["hvd_mpi"].script), *words, *changes]

    def _script_words(self, work: Work, directory: Path) -> list[str]:
        return _script_words(self.words, self.steps, self.seed, work, directory)

    def facts(self) -> dict[str, Any]:
        """For the report."""
        return {
            "model": self.options.model,
            "vocab_size": self.inputs.vocab_size,
            "max_seq_length": self.inputs.max_seq_length,
            "use_avg_len": self.options.use_avg_len,
            "accumulate": self.options.accumulate,
            "compression": self.options.compression,
            "num_steps": self.steps.total,
            "warmup_steps": self.steps.warm_up,
            "log_interval": self.steps.interval,
        }


def plan_training(options: argparse.Namespace, steps: Steps, settings: Sequence[Setting]) -> Training:
    """Settles what is trained, and checks it with the training scripts' own rules for every setting. Builds
    the embedded text under --output where no data is named.

    Raises:
        InputError: an option, or a file, that the scripts would refuse.
    """
    _check_script_args(options.script_args)
    given = {word.partition("=")[0] for word in options.script_args if word.startswith("--")}
    words = list(options.script_args)
    output = Path(options.output).resolve()
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
    own["--model"] = own["--model"] or EMBEDDED_MODEL
    for flag, value in own.items():
        if value is True:
            words.append(flag)
        elif value not in (None, False):
            words += [flag, str(value)]
    if "--cache_dir" not in given:
        words += ["--cache_dir", str(output / "tokens")]
    everything = tuple(words)
    for setting in settings:
        first = _script_words(everything, steps, options.seed, Work(setting, TIMED, 0), output / "none")
        parsed = parse_script_options(first, "")
        if setting == settings[0]:
            training = Training(everything, parsed, check_inputs(run_config(parsed)), steps, options.seed)
    return training


def _script_words(shared: Sequence[str], steps: Steps, seed: int, work: Work, directory: Path) -> list[str]:
    """The script's options for a launch that leaves its files in `directory`."""
    total, interval = steps.total, steps.interval
    profile: list[str] = []
    if work.kind == PROFILED:
        total = interval = LAST
        profile = ["--profile", str(directory / TRACE)]
    _, _, dtype, batch_size = work.setting
    return [
        *shared,
        *("--dtype", dtype, "--batch_size", str(batch_size)),
        *("--num_steps", str(total), "--log_interval", str(interval), "--ckpt_interval", str(total)),
        *("--seed", str(seed), "--progress", "lines", "--ckpt_dir", str(directory / CKPT)),
        *profile,
    ]


def _check_script_args(words: Sequence[str]) -> None:
    for word in words:
        name = word.partition("=")[0]
        if name in _OWN:
            raise InputError(f"{name} after --: is an option of compare.py, too; give it before --")
        if name in _OWN_AXES:
            raise InputError(f"{name} after --: compare.py sets it; use {_OWN_AXES[name]} before --")
        if name in _REFUSED:
            raise InputError(f"{name} after --: compare.py decides it for each launch; leave it out")


def data_identity(training: Training) -> list[list[Any]]:
    """The files that are read, with size and time of their last change: what a second call must find."""
    options = training.options
    vocabularies = [each for each in (options.vocab, options.sentencepiece) if each]
    found = []
    for path in map(Path, (*training.inputs.train.paths, *vocabularies)):
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file():
                stat = file.stat()
                found.append([str(file.resolve()), stat.st_size, stat.st_mtime_ns])
    return found
