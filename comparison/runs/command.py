"""`python compare.py`: training runs over every backend, from the options to the report.

It reads in the order of a comparison.
"""

from __future__ import annotations

import statistics
import sys
from datetime import datetime, timezone
from typing import Mapping, NamedTuple, Sequence

from base import machine
from base.errors import InputError
from base.progress import Printed
from comparison.backends import BACKENDS, ROOT, environment
from comparison.campaign import (
    Setting,
    Store,
    begin_progress,
    left_in_words,
    order_of_repeat,
    seconds_left,
    versions,
    what_counts,
)
from comparison.launch import launch, reason_of_exit
from comparison.options import RunsOptions
from comparison.report import beside
from comparison.runs import agreement
from comparison.runs.launches import (
    Training,
    finished,
    identity,
    keep_outcome,
    make_directory,
    plan_training,
    remove_checkpoints,
    save,
)
from comparison.runs.record import LOG, PROFILED, TIMED, Record, Work, read_run
from comparison.runs.report import report_of
from comparison.runs.results import FAILED, NOT_RUN, Results

FUSION = "HOROVOD_FUSION_THRESHOLD"  # bytes; on CPUs the training scripts set 0 where it is not set
MOST_FAILURES = 2  # of a setting: it is not launched again
BAD = (
    FAILED,
    NOT_RUN,
    agreement.WRONG,
    agreement.UNDECIDED,
)  # kinds of results; out of memory is none of them


class Comparison(NamedTuple):
    """All that the launches need. `works`: the launches in their order."""

    options: RunsOptions
    training: Training
    works: Sequence[Work]
    store: Store


def compare_runs(options: RunsOptions) -> int:
    """Makes the launches that are still missing and writes the report.

    Returns:
        0, or 1 where a backend was wrong, or has failed in a setting.

    Raises:
        InputError: before any work.
        KeyboardInterrupt: after the partial report has been written.
    """
    options.campaign.warn_of_few_repeats()
    output = options.campaign.output
    try:
        with Store(output) as store:
            return _compare_in(store, options)
    except OSError as error:  # a full disk, a file system that has gone
        raise InputError(f"--output {output}: {error.filename}: {error.strerror}") from error


def _compare_in(store: Store, options: RunsOptions) -> int:
    campaign = options.campaign
    training = plan_training(options.trained, options.settings, options.steps, campaign.seed, campaign.output)
    axes = {
        "--backends": list(campaign.backends),
        "--workers": campaign.workers,
        "--dtypes": options.dtypes,
        "--batch_sizes": options.batch_sizes,
    }
    own = {"--seed": campaign.seed, "--profiles": options.profiles}
    facts = {**own, **training.facts, **identity(training, store.directory)}
    store.agree_on(what_counts(facts, axes, campaign.cluster), campaign.repeats)
    comparison = Comparison(options, training, works_of(options), store)
    made = finished(store, comparison.works)
    if campaign.retry_failed:
        made = {work: record for work, record in made.items() if not record.failure}
    try:
        _launch_all(comparison, made)
    except KeyboardInterrupt:
        _report(comparison, made, complete=False)
        print("interrupted; the same command continues", file=sys.stderr, flush=True)
        raise
    results = _report(comparison, made, complete=True)
    return 1 if any(result.kind in BAD for result in results.results) else 0


def works_of(options: RunsOptions) -> list[Work]:
    """A profile of each setting first, which shows early what does not run at all; the others between the
    repeats, so that one slow minute does not meet two profiles of a setting."""
    profiles, repeats = options.profiles, options.campaign.repeats
    rounds = [
        (kind, number)
        for number in range(max(profiles, repeats))
        for kind, count in ((PROFILED, profiles), (TIMED, repeats))
        if number < count
    ]
    return [
        Work(setting, kind, number)
        for kind, number in rounds
        for setting in order_of_repeat(options.settings, number, options.campaign.seed)
    ]


def _launch_all(comparison: Comparison, made: dict[Work, Record]) -> None:
    """Makes the launches that `made` does not have, and adds them."""
    works = comparison.works
    progress = begin_progress(len(works), len(made))
    try:
        if len(made) < len(works):
            progress.note(
                f"{len(works)} launches for {len(comparison.options.settings)} settings, {len(made)} of them"
                f" made before, in {comparison.store.directory}"
            )
            _prepare(comparison, progress)
        for index, work in enumerate(works):
            if work in made or _hopeless(made, work.setting):
                continue
            progress.start(str(work))
            record = _launch(comparison, work)
            made[work] = record
            todo = [each for each in works[index + 1 :] if each not in made]
            still = [each for each in todo if not _hopeless(made, each.setting)]
            left = left_in_words(time_left(still, made))
            left += beside(record.others)
            progress.finish(str(work), _result(record), left, failed=bool(record.failure))
            if record.failure and _hopeless(made, work.setting):
                _leave_out(progress, work.setting, sum(each.setting == work.setting for each in todo))
    finally:
        progress.end()


def _leave_out(progress: Printed, setting: Setting, number: int) -> None:
    """Notes that so many launches of a setting will not be made."""
    progress.skip(number)
    if number:
        progress.note(f"{setting.name} has failed too often: {number} more launches of it are left out")


def _hopeless(made: Mapping[Work, Record], setting: Setting) -> bool:
    """True for a setting that has failed so often that it is not launched again."""
    failures = sum(work.setting == setting and bool(record.failure) for work, record in made.items())
    return failures >= MOST_FAILURES


def time_left(todo: Sequence[Work], made: Mapping[Work, Record]) -> float:
    """Seconds that the launches to come will take, by those of their setting, or else of as many workers."""
    seconds = {work: record.seconds for work, record in made.items()}
    kinds = (lambda work: (work.setting, work.kind), lambda work: (work.setting.workers, work.kind))
    return seconds_left(todo, seconds, kinds)


def _result(record: Record) -> str:
    if record.failure:
        return record.failure
    if record.kind == PROFILED:
        return f"done in {record.seconds:.0f} s"
    step = statistics.median(interval.step_s for interval in record.intervals)
    return f"{step:.3g} s/step"


def _prepare(comparison: Comparison, progress: Printed) -> None:
    """Tokenizes or converts the data, unless a call before this one has, in the same place: what the cache
    knows of files does not hold for a copy. Raises InputError when that fails."""
    directory = comparison.store.directory / "preparation"
    done = directory / "done"
    command = comparison.training.preparation(comparison.options.settings[0], directory)
    if command is None or (done.exists() and done.read_text("utf-8") == str(directory)):
        return
    progress.note("preparing the data")
    directory.mkdir(exist_ok=True)
    log = directory / LOG
    ended = launch(command, environment(BACKENDS["hvd_mpi"]), log, limit_s=float("inf"))
    remove_checkpoints(directory)
    if ended.returncode:
        reason, _ = reason_of_exit(ended, log.read_text(encoding="utf-8", errors="replace"))
        raise InputError(f"the data cannot be prepared: {reason}; see {log}")
    done.write_text(str(directory), "utf-8")


def _launch(comparison: Comparison, work: Work) -> Record:
    """One launch, kept in the store."""
    campaign, training = comparison.options.campaign, comparison.training
    backend = campaign.backends[work.setting.backend]
    directory = make_directory(comparison.store, work)
    command = training.command(work, backend, campaign.cluster, directory)
    begun = datetime.now(timezone.utc).isoformat(timespec="seconds")
    variables = environment(backend, cluster=campaign.cluster)
    launched = launch(command, variables, directory / LOG, campaign.time_limit, backend.script)
    steps = training.steps_of(work)
    keep_outcome(directory, steps.total)
    record = read_run(work, steps, launched, directory, command, begun)
    save(comparison.store, record)
    return record


def _report(comparison: Comparison, made: Mapping[Work, Record], complete: bool) -> Results:
    """Writes and prints the report."""
    options = comparison.options
    campaign = options.campaign
    facts = {
        "machine": machine.describe(ROOT),
        "versions": versions(),
        "options": campaign.given,
        **comparison.training.facts,
        "confidence": campaign.confidence,
        "gpus": campaign.gpus,
        "fused": environment(BACKENDS["hvd_mpi"], cluster=campaign.cluster).get(FUSION, "0") != "0",
        "price_per_hour": options.price_per_hour,
        "gpus_per_instance": options.gpus_per_instance,
        "command": campaign.command,
        "titles": campaign.titles(),
    }
    records = [made[work] for work in comparison.works if work in made]
    report, results = report_of(facts, records, options.settings, campaign.repeats, complete)
    paths = report.write(comparison.store.directory)
    print(report.terminal)
    print("\n".join(map(str, paths)), flush=True)
    return results
