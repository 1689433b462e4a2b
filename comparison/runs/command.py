"""`python compare.py`: training runs over every backend, from the options to the report.

It reads in the order of a comparison.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Sequence

from base.errors import InputError
from base.progress import Printed
from comparison.backends import BACKENDS, environment
from comparison.campaign import Campaign, Said, Store, what_counts
from comparison.launch import launch, reason_of_exit
from comparison.options import RunsOptions
from comparison.report import Report
from comparison.runs import agreement
from comparison.runs.launches import (
    Training,
    finished,
    identity,
    keep_outcome,
    make_directory,
    path_of,
    plan_training,
    remove_checkpoints,
    save,
)
from comparison.runs.record import LOG, PROFILED, TIMED, Record, Work, read_run
from comparison.runs.report import report_of
from comparison.runs.results import FAILED, NOT_RUN
from comparison.settings import order_of_repeat

FUSION = "HOROVOD_FUSION_THRESHOLD"  # bytes; on CPUs the training scripts set 0 where it is not set
START_S, STEP_S = 10.0, 0.5  # a launch's start and a step, before one was made
MOST_FAILURES = 2  # of a setting: it is not launched again
# Kinds of results; running out of memory is none of them.
BAD = (FAILED, NOT_RUN, agreement.WRONG, agreement.UNDECIDED)


def compare_runs(options: RunsOptions) -> int:
    """Makes the launches that are still missing and writes the report.

    Returns:
        0, or 1 where a backend was wrong, or has failed in a setting.

    Raises:
        InputError: before any work.
        KeyboardInterrupt: after the partial report has been written.
    """
    options.warn_of_few_repeats()
    try:
        with Store(options.output, options.dry_run) as store:
            training = plan_training(replace(options, output=str(store.folder)))
            axes = {
                "--backends": list(options.backends),
                "--workers": options.workers,
                "--dtypes": options.dtypes,
                "--batch_sizes": options.batch_sizes,
                "--seed": options.seed,
                "--profiles": options.profiles,
            }
            facts = {**axes, **training.facts, **identity(training, store.folder)}
            store.agree_on(what_counts(facts, options.cluster), options.repeats)
            # A profile of each setting first, which shows early what does not run at all; the others between
            # the repeats, so that one slow minute does not meet two profiles of a setting.
            works = [
                Work(setting, kind, number)
                for number in range(max(options.profiles, options.repeats))
                for kind, count in ((PROFILED, options.profiles), (TIMED, options.repeats))
                if number < count
                for setting in order_of_repeat(options.settings, number, options.seed)
            ]
            made = finished(store, works)
            if options.retry_failed:
                made = {work: record for work, record in made.items() if not record.failure}
            runs = Runs(options, training, store, works, made)
            return runs.dry_run() if options.dry_run else runs.run(store.directory)
    except OSError as error:  # a full disk, a file system that has gone
        raise InputError(f"--output {options.output}: {error.filename}: {error.strerror}") from error


class Runs(Campaign[Work, Record]):
    """Training runs: timed ones and profiled ones."""

    options: RunsOptions
    alike = (lambda work: (work.setting, work.kind), lambda work: (work.setting.workers, work.kind))
    rule = (
        f"{START_S:g} s to start and {STEP_S:g} s for each of --steps, at most --time_limit; the first"
        " launches say it better"
    )

    def __init__(self, options: RunsOptions, training: Training, *campaign: Any):
        super().__init__(options, *campaign)
        self.training = training

    def title(self, work: Work) -> str:
        return str(work)

    def command(self, work: Work, folder: Path) -> Sequence[str]:
        directory = folder / path_of(work)
        directory.mkdir(parents=True, exist_ok=True)
        backend = self.options.backends[work.setting.backend]
        return self.training.command(work, backend, self.options.cluster, directory)

    def guess(self, work: Work) -> float:
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
        directory = self.store.directory / "preparation"
        done, log = directory / "done", directory / LOG
        command = self.training.preparation(self.options.settings[0], directory)
        if command is None or (done.exists() and done.read_text("utf-8") == str(directory)):
            return
        progress.note("preparing the data")
        directory.mkdir(exist_ok=True)
        ended = launch(command, environment(BACKENDS["hvd_mpi"]), log, limit_s=float("inf"))
        remove_checkpoints(directory)
        if ended.returncode:
            reason, _ = reason_of_exit(ended, log.read_text(encoding="utf-8", errors="replace"))
            raise InputError(f"the data cannot be prepared: {reason}; see {log}")
        done.write_text(str(directory), "utf-8")

    def will_run(self, work: Work) -> bool:
        """False for a setting that has failed so often that it is not launched again."""
        own = [record for other, record in self.made.items() if other.setting == work.setting]
        return sum(bool(record.failure) for record in own) < MOST_FAILURES

    def launch(self, work: Work) -> Said:
        options, training = self.options, self.training
        backend = options.backends[work.setting.backend]
        directory = make_directory(self.store, work)
        command = self.command(work, self.store.folder)
        begun = datetime.now(timezone.utc).isoformat(timespec="seconds")
        variables = environment(backend, cluster=options.cluster)
        launched = launch(command, variables, directory / LOG, options.time_limit, backend.script)
        steps = training.steps_of(work)
        keep_outcome(directory, steps.total)
        record = self.made[work] = read_run(work, steps, launched, directory, command, begun)
        save(self.store, record)
        text = record.failure or f"done in {record.seconds:.0f} s"
        if work.kind == TIMED and not record.failure:
            text = f"{statistics.median(interval.step_s for interval in record.intervals):.3g} s/step"
        return Said(text, record.others, bool(record.failure))

    def after(self, progress: Printed, work: Work) -> None:
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
            "fused": environment(BACKENDS["hvd_mpi"], cluster=options.cluster).get(FUSION, "0") != "0",
            "price_per_hour": options.price_per_hour,
            "gpus_per_instance": options.gpus_per_instance,
        }
        report, results = report_of(facts, records, options.settings, options.repeats, complete)
        bad = [each for each in results.results if each.kind in BAD and (complete or each.kind != NOT_RUN)]
        return report, [f"{each.setting.name}: {each.reason}" for each in bad]
