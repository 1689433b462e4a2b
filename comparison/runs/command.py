"""`python compare.py`: training runs over every backend, from the options to the report; the words of the
training scripts' launches, checked by the scripts' own rules, and their directories.

launches/SETTING/1/, 2/, ..., profile-1/, ...
    one launch: record.json (written last: without it the launch does not count), run.log, metrics.jsonl,
    trace.json, and the manifest of the last checkpoint, 0000060.json say
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any, Mapping, NamedTuple, Sequence

from base.errors import InputError
from base.files import sha256_of
from base.options import options_in
from base.progress import Printed
from comparison.backends import BACKENDS, environment, launch_words
from comparison.campaign import LAUNCHES, Campaign, Said, Store, what_counts
from comparison.launch import launch, reason_of_exit
from comparison.options import EMBEDDED_LENGTH, EMBEDDED_MODEL, RunsOptions, Trained
from comparison.report import Report
from comparison.runs import agreement
from comparison.runs.record import LOG, METRICS, PROFILED, TIMED, TRACE, Record, Steps, read_run
from comparison.runs.report import report_of
from comparison.runs.results import FAILED, NOT_RUN
from comparison.settings import Turn, turns_of
from data import embedded
from training.checkpoint import manifest_name
from training.inputs import check_inputs
from training.options import parse_options as parse_script_options
from training.options import run_config
from training.profiling.profiler import LAST

FUSION = "HOROVOD_FUSION_THRESHOLD"  # bytes; on CPUs the training scripts set 0 where it is not set
START_S, STEP_S = 10.0, 0.5  # a launch's start and a step, before one was made
MOST_FAILURES = 2  # of a setting: it is not launched again
# Kinds of results; running out of memory is none of them.
BAD = (FAILED, NOT_RUN, agreement.WRONG, agreement.UNDECIDED)
_CKPT = "ckpt"  # below a launch's directory
PREPARATION = "preparation"  # under --output
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


def compare_runs(options: RunsOptions) -> int:
    """Makes the launches that are still missing and writes the report.

    Returns:
        0, or 1 where a backend was wrong, or has failed in a setting.

    Raises:
        InputError: before any work.
        KeyboardInterrupt: after the partial report has been written.
        OSError: a file cannot be written.
    """
    with Store(options.output, options.dry_run) as store:
        training = plan_training(options, store.folder)
        names = ("backends", "workers", "dtypes", "batch_sizes", "seed")
        plan = {f"--{name}": options.given[name] for name in names}
        plan.update({"--profiles": options.profiles, **training.facts, **training.identity})
        store.agree_on(what_counts(plan, options.cluster), options.repeats)
        # A profile of each setting first, which shows early what does not run at all; the others between
        # the repeats, so that one slow minute does not meet two profiles of a setting.
        counts = {PROFILED: options.profiles, TIMED: options.repeats}
        works = turns_of(options.settings, counts, options.seed)
        runs = Runs(options, training, store, works)
        return runs.dry_run() if options.dry_run else runs.run(store.directory)


class Runs(Campaign):
    """Training runs: timed ones and profiled ones."""

    options: RunsOptions
    alike = (lambda work: (work.setting, work.kind), lambda work: (work.setting.workers, work.kind))
    rule = (
        f"{START_S:g} s to start and {STEP_S:g} s for each of --steps, at most --time_limit; the first"
        " launches say it better"
    )

    read = Record.from_json

    def __init__(self, options: RunsOptions, training: Training, store: Store, works: Sequence[Turn]):
        super().__init__(options, store, works)
        self.training = training

    def folder_of(self, work: Turn) -> str:
        number = str(work.repeat + 1)
        name = f"profile-{number}" if work.kind == PROFILED else number
        return f"{LAUNCHES}/{work.setting.name}/{name}"

    def record_of(self, work: Turn) -> str:
        return f"{self.folder_of(work)}/record.json"

    def title(self, work: Turn) -> str:
        which = "profile" if work.kind == PROFILED else "repeat"
        return f"{work.setting.name} {which} {work.repeat + 1}"

    def command(self, work: Turn) -> Sequence[str]:
        directory = self.store.folder / self.folder_of(work)
        directory.mkdir(parents=True, exist_ok=True)
        backend = self.options.backends[work.setting.backend]
        words = launch_words(backend, work.setting.workers, self.options.cluster, directory)
        return [*words, sys.executable, str(backend.script), *self.training.script_words(work, directory)]

    def guess(self, work: Turn) -> float:
        return min(START_S + STEP_S * self.training.steps_of(work).total, self.options.time_limit)

    def seconds(self, record: Record) -> float:
        return record.seconds

    def prepare(self, progress: Printed) -> None:
        """Tokenizes or converts the data, unless a call before this one has, in the same place: what the
        cache knows of files does not hold for a copy. Raises InputError when that fails."""
        progress.note(
            f"{len(self.works)} launches for {len(self.options.settings)} settings, {len(self.made)} of them"
            f" made before, in {self.store.directory}"
        )
        directory, command = self.store.directory / PREPARATION, self.training.preparation
        done, log = directory / "done", directory / LOG
        if not command or (done.exists() and done.read_text("utf-8") == str(directory)):
            return
        progress.note("preparing the data")
        directory.mkdir(exist_ok=True)
        ended = launch(command, environment(BACKENDS["hvd_mpi"]), log, limit_s=float("inf"))
        shutil.rmtree(directory / _CKPT, ignore_errors=True)
        if ended.returncode:
            reason, _ = reason_of_exit(ended, log.read_text(encoding="utf-8", errors="replace"))
            raise InputError(f"the data cannot be prepared: {reason}; see {log}")
        done.write_text(str(directory), "utf-8")

    def will_run(self, work: Turn) -> bool:
        """False for a setting that has failed so often that it is not launched again."""
        own = [record for other, record in self.made.items() if other.setting == work.setting]
        return sum(bool(record.failure) for record in own) < MOST_FAILURES

    def failed(self, work: Turn, record: Record) -> bool:
        return bool(record.failure)

    def measure(self, work: Turn, directory: Path) -> Record:
        options, training = self.options, self.training
        backend = options.backends[work.setting.backend]
        command = self.command(work)
        variables = environment(backend, options.cluster)
        launched = launch(command, variables, directory / LOG, options.time_limit, backend.script)
        steps = training.steps_of(work)
        # What stays of the checkpoints: the metrics, and the last manifest, with the parameters' checksum.
        for name in (METRICS, manifest_name(steps.total)):
            if (directory / _CKPT / name).exists():
                os.replace(directory / _CKPT / name, directory / name)
        shutil.rmtree(directory / _CKPT, ignore_errors=True)
        return read_run(work, steps, launched, directory, command)

    def said(self, record: Record) -> Said:
        text = record.failure or f"done in {record.seconds:.0f} s"
        if record.kind == TIMED and not record.failure:
            text = f"{statistics.median(interval.step_s for interval in record.intervals):.3g} s/step"
        return Said(text, record.others or 0.0, bool(record.failure))

    def after(self, progress: Printed, work: Turn) -> None:
        """Notes how many launches of a setting will not be made."""
        if self.will_run(work):
            return
        number = sum(each.setting == work.setting and each not in self.made for each in self.works)
        progress.skip(number)
        if number:
            text = f"has failed too often: {number} more launches of it are left out"
            progress.note(f"{work.setting.name} {text}")

    def report_of(self, records: Sequence[Record], complete: bool) -> tuple[Report, list[str]]:
        options = self.options
        facts = {
            **self.facts,
            **self.training.facts,
            "gpus": options.gpus,
            "hosts": options.cluster and options.cluster.lines,
            "fused": environment(BACKENDS["hvd_mpi"], options.cluster).get(FUSION, "0") != "0",
            "price_per_hour": options.price_per_hour,
            "gpus_per_instance": options.gpus_per_instance,
        }
        report, results = report_of(facts, records, options.settings, options.repeats, complete)
        bad = [each for each in results.results if each.kind in BAD and (complete or each.kind != NOT_RUN)]
        return report, [f"{each.setting.name}: {each.reason}" for each in bad]


class Training(NamedTuple):
    """Options and facts that all launches have in common.

    `words`: options of the scripts. `facts`: what these mean, for the report. `identity`: what a second call
    must see again, see `identity`. `preparation`: the command that tokenizes or converts the data once, by
    taking a step with it, so that no launch begins later than another because it had to; () where there is
    nothing to do.
    """

    words: tuple[str, ...]
    steps: Steps
    seed: int
    facts: Mapping[str, Any] = MappingProxyType({})
    identity: Mapping[str, Any] = MappingProxyType({})
    preparation: Sequence[str] = ()

    def steps_of(self, work: Turn) -> Steps:
        return Steps(LAST, 0, LAST) if work.kind == PROFILED else self.steps

    def script_words(self, work: Turn, directory: Path) -> list[str]:
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


def plan_training(options: RunsOptions, directory: Path) -> Training:
    """Settles what is trained, and checks it with the training scripts' own rules for every setting. Builds
    the embedded text in the directory where no data is named.

    Raises:
        InputError: an option, or a file, that the scripts would reject.
    """
    steps = Steps(options.steps, options.warmup_steps, options.log_interval)
    training = Training(_shared_words(options, directory), steps, options.seed)
    works = [Turn(setting, 0, TIMED) for setting in options.settings]
    script, *_ = [parse_script_options(training.script_words(work, directory / "none"), "") for work in works]
    config = run_config(script)
    inputs = check_inputs(config)
    preparation: list[str] = []
    if not script.dummy_data_len and inputs.train.kind in ("text", "instances"):
        own = training.script_words(works[0], directory / PREPARATION)
        preparation = [sys.executable, str(BACKENDS["hvd_mpi"].script), *own, "--num_steps", "1"]
        if not script.pretrained and "--model" in own:  # of two the later one counts
            preparation += ["--model", "bert_1_32_2"]
    files = [*inputs.train.paths, *filter(None, (script.vocab, script.sentencepiece))]
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
        identity=identity(training.words, files, directory),
        preparation=preparation,
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


def identity(words: Sequence[str], paths: Sequence[str], folder: Path) -> dict[str, Any]:
    """The scripts' options, and the data and vocabularies with their sizes and the times of their last
    changes: a second call must see the same. What lies below `folder`, the comparison's, is named from there
    and has its checksum in place of the time, so that a folder that was moved or copied can be continued."""
    prefix, files = f"{folder}{os.sep}", []
    for path in map(Path, paths):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                name, stat = str(file.resolve()), file.stat()
                state = sha256_of(name) if name.startswith(prefix) else stat.st_mtime_ns
                files.append([name.removeprefix(prefix), stat.st_size, state])
    return {"script options": [word.removeprefix(prefix) for word in words], "data": files}
