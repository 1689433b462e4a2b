"""A comparison from the command line to the report. It reads in the order of a comparison."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
from datetime import datetime, timezone
from types import FrameType
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from base import machine
from base.errors import InputError
from comparison.launching.backends import BACKENDS, ROOT, Backend, environment
from comparison.launching.failure import reason_of_exit
from comparison.launching.launch import launch
from comparison.launching.read_run import LOG, Steps, Work, read_run
from comparison.launching.training import CKPT, Training, data_identity, plan_training
from comparison.messages.command import compare_messages
from comparison.options import FEWEST_REPEATS, check_training, parse_options, settings_of, steps_of
from comparison.progress import Progress, seconds_left
from comparison.projection.command import project
from comparison.record import PROFILED, TIMED, Record
from comparison.reporting import agreement
from comparison.reporting.report import Report, write_report
from comparison.reporting.results import FAILED, NOT_RUN
from comparison.settings import Setting, order_of_repeat
from comparison.store import Store, finished, versions, what_counts
from training.profiling.profiler import LAST

FUSION = "HOROVOD_FUSION_THRESHOLD"  # bytes; on CPUs the training scripts set 0 where it is not set
MOST_FAILURES = 2  # of a setting: it is not launched again
BAD = (
    FAILED,
    NOT_RUN,
    agreement.WRONG,
    agreement.UNDECIDED,
)  # kinds of results; out of memory is none of them


class Terminated(KeyboardInterrupt):
    """SIGTERM: what Ctrl-C means, with another exit code."""


class Comparison(NamedTuple):
    """All that a comparison needs. `works`: its launches in their order."""

    options: Any
    backends: Mapping[str, Backend]
    training: Training
    settings: Sequence[Setting]
    works: Sequence[Work]
    store: Store


def main(
    arguments: Sequence[str], backends: Mapping[str, Backend] = BACKENDS, description: str | None = None
) -> int:
    """`python compare.py`; returns its exit code, see --help.

    Args:
        backends: those that --backends can name.

    Raises:
        InputError: before any work.
    """
    options = parse_options(arguments, backends, description)
    with _terminated_by_signal():
        try:
            if options.project:
                return project(options)
            if options.comm_only:
                return compare_messages(options, backends)
            return compare_training(options, backends, arguments)
        except KeyboardInterrupt as interrupt:  # before there was anything to report
            return _code(interrupt)


def compare_training(options: Any, backends: Mapping[str, Backend], arguments: Sequence[str]) -> int:
    """Launches what is still missing and writes the report; returns the exit code. Raises InputError."""
    if options.repeats < FEWEST_REPEATS:
        text = f"warning: --repeats {options.repeats}: verdicts take {FEWEST_REPEATS}; there will be none"
        print(text, file=sys.stderr, flush=True)
    check_training(options, backends)
    try:
        return _in_store(options, backends, arguments)
    except OSError as error:  # a full disk, a file system that has gone
        raise InputError(f"--output {options.output}: {error.filename}: {error.strerror}") from error


def _in_store(options: Any, backends: Mapping[str, Backend], arguments: Sequence[str]) -> int:
    steps, settings = steps_of(options), settings_of(options)
    with Store(options.output) as store:
        training = plan_training(options, steps, settings)
        axes = {
            f"--{name}": getattr(options, name) for name in ("backends", "workers", "dtypes", "batch_sizes")
        }
        profiles = 0 if options.no_profile else options.profiles
        own = {"--seed": options.seed, "--profiles": profiles, "script options": training.words}
        facts = {**own, **training.facts(), "data": data_identity(training)}
        store.agree_on(what_counts(facts, axes, options.cluster), options.repeats)
        comparison = Comparison(
            options, backends, training, settings, _works(options, profiles, settings), store
        )
        made = finished(store, comparison.works)
        if options.retry_failed:
            made = {work: record for work, record in made.items() if not record.failure}
        interrupt = None
        try:
            _launch_all(comparison, made)
        except KeyboardInterrupt as error:
            interrupt = error
        report = _report(comparison, made, interrupt is None, arguments)
        print(report.terminal)
        print("\n".join(map(str, report.paths)), flush=True)
    if interrupt is not None:
        print("interrupted; the same command continues", file=sys.stderr, flush=True)
        return _code(interrupt)
    return 1 if any(result.kind in BAD for result in report.results.results) else 0


def _works(options: Any, profiles: int, settings: Sequence[Setting]) -> list[Work]:
    """A profile of each setting first, which shows early what does not run at all; the others between the
    repeats, so that one slow minute does not meet two profiles of a setting."""
    rounds = [
        (kind, number)
        for number in range(max(profiles, options.repeats))
        for kind, count in ((PROFILED, profiles), (TIMED, options.repeats))
        if number < count
    ]
    return [
        Work(setting, kind, number)
        for kind, number in rounds
        for setting in order_of_repeat(settings, number, options.seed)
    ]


def _launch_all(comparison: Comparison, made: dict[Work, Record]) -> None:
    """Makes the launches that `made` does not have, and adds them."""
    works = comparison.works
    progress = Progress(len(works), len(made))
    try:
        if len(made) < len(works):
            progress.note(
                f"{len(works)} launches for {len(comparison.settings)} settings, {len(made)} of them made"
                f" before, in {comparison.store.directory}"
            )
            _prepare(comparison, progress)
        for index, work in enumerate(works):
            if work in made or _hopeless(made, work.setting):
                continue
            progress.start(str(work))
            record = _launch(comparison, work)
            made[work] = record
            todo = [each for each in works[index + 1 :] if each not in made]
            todo_still = [each for each in todo if not _hopeless(made, each.setting)]
            progress.end_launch(work, record, seconds_left(todo_still, made))
            if record.failure and _hopeless(made, work.setting):
                progress.leave_out(work.setting, sum(each.setting == work.setting for each in todo))
    finally:
        progress.end()


def _hopeless(made: Mapping[Work, Record], setting: Setting) -> bool:
    """Whether it has failed so often that it is not launched again."""
    failures = sum(work.setting == setting and bool(record.failure) for work, record in made.items())
    return failures >= MOST_FAILURES


def _prepare(comparison: Comparison, progress: Progress) -> None:
    """Tokenizes or converts the data, unless a comparison before this one has. Raises InputError when that
    fails."""
    directory = comparison.store.directory / "preparation"
    done = directory / "done"
    command = comparison.training.preparation(comparison.settings[0], directory)
    if command is None or done.exists():
        return
    progress.note("preparing the data")
    directory.mkdir(exist_ok=True)
    log = directory / LOG
    ended = launch(command, environment(BACKENDS["hvd_mpi"]), log, limit_s=float("inf"))
    shutil.rmtree(directory / CKPT, ignore_errors=True)
    if ended.returncode:
        reason, _ = reason_of_exit(ended, log.read_text(encoding="utf-8", errors="replace"))
        raise InputError(f"the data cannot be prepared: {reason}; see {log}")
    done.touch()


def _launch(comparison: Comparison, work: Work) -> Record:
    """One launch, kept in the store."""
    options, store, training = comparison.options, comparison.store, comparison.training
    backend = comparison.backends[work.setting.backend]
    directory = store.make_directory(work)
    command = training.command(work, backend, options.cluster, directory)
    begun = datetime.now(timezone.utc).isoformat(timespec="seconds")
    variables = environment(backend, cluster=options.cluster)
    launched = launch(command, variables, directory / LOG, options.time_limit, backend.script)
    steps = _steps(training, work)
    store.keep_outcome(work, steps.total)
    record = read_run(work, steps, launched, directory, command, begun)
    store.save(work, record)
    return record


def _steps(training: Training, work: Work) -> Steps:
    return Steps(LAST, 0, LAST) if work.kind == PROFILED else training.steps


def _report(
    comparison: Comparison, made: Mapping[Work, Record], complete: bool, arguments: Sequence[str]
) -> Report:
    options = comparison.options
    facts = {
        "machine": machine.describe(ROOT),
        "versions": versions(),
        "options": {name: value for name, value in vars(options).items() if name != "cluster"},
        **comparison.training.facts(),
        "confidence": options.confidence,
        "gpus": options.gpus,
        "fused": environment(BACKENDS["hvd_mpi"], cluster=options.cluster).get(FUSION, "0") != "0",
        "price_per_hour": options.price_per_hour,
        "gpus_per_instance": options.gpus_per_instance,
        "command": ["python", "compare.py", *arguments],
        "titles": {key: backend.title for key, backend in comparison.backends.items()},
    }
    records = [made[work] for work in comparison.works if work in made]
    return write_report(
        comparison.store.directory, facts, records, comparison.settings, options.repeats, complete
    )


def _code(interrupt: KeyboardInterrupt) -> int:
    return 128 + (signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)


@contextlib.contextmanager
def _terminated_by_signal() -> Iterator[None]:
    """In the block SIGTERM raises Terminated."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
