"""A campaign of launches that a second call continues: its directory, its loop, the time that is left.

The comparisons of training runs, of communication alone and of emulated clusters are such campaigns. In the
directory are

plan.json    what is compared: another call must agree with it
lock         held while a campaign runs

beside what each of them keeps of its launches.
"""

from __future__ import annotations

import abc
import contextlib
import fcntl
import json
import math
import os
import platform
import shlex
import shutil
import signal
import statistics
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import IO, Any, Callable, Hashable, Mapping, NamedTuple, Sequence

from base import machine
from base.errors import InputError
from base.json_files import read_json_file, read_json_object
from base.progress import Printed
from base.quantities import duration, percent
from comparison.backends import ROOT, Cluster
from comparison.options import Launching
from comparison.report import BUSY, PLANNING, Report, as_json, write_text
from comparison.settings import Turn
from comparison.verdicts import FEWEST_REPEATS

PLAN, LOCK = "plan.json", "lock"
LAUNCHES = "launches"  # of training runs, see comparison.runs.record
REPEATS = "repeats"  # in the plan: the one value that may change, upwards
PACKAGES = ("mxnet", "gluonnlp", "horovod", "byteps", "numpy", "onednn-cpu-gomp")
# Of the environment, what changes how training runs.
_VARIABLES = (
    *("OMP_", "GOMP_", "KMP_", "MXNET_", "DNNL_", "ONEDNN_", "BERT_"),
    *("HOROVOD_", "BYTEPS_", "PS_", "OMPI_MCA_", "NCCL_"),
)
_PLACES = ("_directory", "_tmpdir_base")  # of Open MPI's own files
_REPORTS = ("report.md", "report.json", LAUNCHES)


class Store:
    """Directory of a campaign; in the block nobody else can use it.

    Attributes:
        directory: its files are read here.
        folder: what is made anew lies here: the same, or with `dry` one that the end of the block removes.

    Args:
        directory: is made if need be, but with `dry`, where nothing is written to it.

    Raises:
        InputError: it cannot be written, another comparison is using it, or it holds something else.
    """

    def __init__(self, directory: str, dry: bool = False):
        self.directory = self.folder = Path(directory).resolve()
        self._given, self._dry = directory, dry
        self._block = contextlib.ExitStack()

    def __enter__(self) -> Store:
        try:
            if not self._dry or self.directory.exists():
                self.directory.mkdir(parents=True, exist_ok=True)
            foreign = [name for name in _REPORTS if (self.directory / name).exists()]
            if foreign and not (self.directory / PLAN).exists():
                raise InputError(
                    f"--output {self._given}: holds a {foreign[0]} that is not of a comparison;"
                    " choose another directory"
                )
            if self._dry:
                scratch = self._block.enter_context(tempfile.TemporaryDirectory())
                self.folder = Path(scratch).resolve()
                return self
            lock: IO[bytes] = self._block.enter_context(open(self.directory / LOCK, "wb"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._block.close()
            raise InputError(
                f"--output {self._given}: another comparison is using it; wait for it, or choose another"
                " directory"
            ) from None
        except OSError as error:
            raise InputError(f"--output {self._given}: {error.strerror}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._block.close()

    def agree_on(self, plan: Mapping[str, Any], repeats: int) -> None:
        """Notes what is compared, or checks that it is what was begun here.

        Args:
            plan: name -> JSON value; all that changes results.
            repeats: may be more than in an earlier call.

        Raises:
            InputError: names what differs.
        """
        path = self.directory / PLAN
        plan = json.loads(json.dumps(plan))
        try:
            earlier = read_json_object(str(path)) if os.path.lexists(path) else None
            before = 0 if earlier is None else int(earlier.pop(REPEATS))
        except (InputError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} cannot be read ({error}); choose another --output, or remove the directory"
            ) from error
        if earlier is not None:
            differing = _differences(earlier, plan)
            if repeats < before:
                differing.append(f"--repeats {repeats} instead of {before}")
            if differing:
                raise InputError(
                    f"--output {self._given} holds a comparison with other values: {'; '.join(differing)}."
                    " Choose another --output to start a new one"
                )
        self.save(PLAN, {**plan, REPEATS: repeats})

    def save(self, name: str, values: Any) -> None:
        """Writes a JSON file, whole or not at all. `name`: its path in the directory."""
        write_text(self.folder / name, as_json(values))

    def load(self, name: str, read: Callable[[Any], Any]) -> Any:
        """`read` of the values of a JSON file; None where there is no such file.

        Raises:
            InputError: the file is damaged: no JSON, or `read` has raised KeyError, TypeError or ValueError.
        """
        path = self.directory / name
        try:
            return read(read_json_file(str(path))) if os.path.lexists(path) else None
        except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is damaged ({error}); remove it to have the launch repeated") from error


def what_counts(values: Mapping[str, Any], cluster: Cluster | None) -> dict[str, Any]:
    """A plan: a comparison's own values, and hosts, this machine and checkout, versions, the environment."""
    here = machine.describe(ROOT)
    return {
        **values,
        "hosts": [list(line) for line in cluster.lines] if cluster else None,
        "machine": {name: here[name] for name in ("cpu", "cores", "commit")},
        "versions": versions(),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_VARIABLES) and not name.endswith(_PLACES)
        },
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a run consists of, as far as they are installed."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def _differences(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words, one for each name."""
    words = []
    for name in sorted({*earlier, *now}):
        before, after = earlier.get(name), now.get(name)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            words += [f"{name}: {each}" for each in _differences(before, after)]
        else:
            words.append(f"{name} {_short(after)} instead of {_short(before)}")
    return words


def _short(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, (str, int)) for each in value):
        return " ".join(map(str, value))
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def code_of(interrupt: KeyboardInterrupt) -> int:
    """The exit code after Ctrl-C, or after the SIGTERM that compare.py makes a KeyboardInterrupt."""
    return 128 + (signal.SIGTERM if interrupt.args == (signal.SIGTERM,) else signal.SIGINT)


class Said(NamedTuple):
    """Words on a launch that has ended, for the progress. `others`: share of this machine's CPU time that
    other programs took meanwhile."""

    text: str
    others: float = 0.0
    failed: bool = False


class Campaign(abc.ABC):
    """Launches in their order, and a report of them. A subclass says how one is made and what it means.

    Args:
        store: where they are kept.
        works: all of them.

    Attributes:
        made: what the launches of earlier calls have left; the others are added. With --retry_failed those
            that have failed are none of them.
    """

    # Launches of which one of these has the same value last about as long; the first kind that any launch
    # made so far shares counts.
    alike: Sequence[Callable[[Any], Hashable]]
    rule: str  # in words: what `guess` goes by
    read: Callable[[Any], Any] = dict  # makes what a launch has left of its JSON
    left_out = ""  # said of a launch that will not run; "": it is passed over in silence

    def __init__(self, options: Launching, store: Store, works: Sequence[Turn]):
        if options.repeats < FEWEST_REPEATS:
            text = f"warning: --repeats {options.repeats}: verdicts take {FEWEST_REPEATS}; there will be none"
            print(text, file=sys.stderr, flush=True)
        self.options, self.store, self.works = options, store, works
        kept = {work: store.load(self.record_of(work), self.read) for work in works}
        self.made: dict[Turn, Any] = {
            work: record
            for work, record in kept.items()
            if record and not (options.retry_failed and self.failed(work, record))
        }

    @property
    def facts(self) -> dict[str, Any]:
        """Facts that every report has about its origin; JSON-able."""
        return {
            "machine": machine.describe(ROOT),
            "versions": versions(),
            "options": self.options.given,
            "confidence": self.options.confidence,
            "command": self.options.command,
            "titles": self.options.titles,
        }

    @abc.abstractmethod
    def title(self, work: Turn) -> str:
        """Name of a launch, for people."""

    @abc.abstractmethod
    def command(self, work: Turn) -> Sequence[str]:
        """The words of a launch that leaves its files below the store's folder."""

    @abc.abstractmethod
    def guess(self, work: Turn) -> float:
        """Seconds that a launch may take, before any is made."""

    @abc.abstractmethod
    def measure(self, work: Turn, directory: Path) -> Any:
        """Makes a launch that leaves its files in an empty directory; what is kept of it, JSON-able."""

    @abc.abstractmethod
    def said(self, record: Any) -> Said:
        """Words on a launch that has ended."""

    @abc.abstractmethod
    def failed(self, work: Turn, record: Any) -> bool:
        """Whether --retry_failed repeats a launch."""

    @abc.abstractmethod
    def will_run(self, work: Turn) -> bool:
        """False for a launch of which nothing is expected, after those made so far."""

    @abc.abstractmethod
    def report_of(self, records: Sequence[Any], complete: bool) -> tuple[Report, list[str]]:
        """The report of the launches so far, and a line for each setting that was wrong or failed."""

    def folder_of(self, work: Turn) -> str:
        """A launch's directory in the store."""
        return work.name

    def record_of(self, work: Turn) -> str:
        """The file, in the store, of what is kept of a launch."""
        return f"{work.name}.json"

    def launch(self, work: Turn) -> Said:
        """Makes a launch. What one that was not finished has left is removed before.

        Raises:
            OSError: it cannot be removed.
        """
        directory = self.store.directory / self.folder_of(work)
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        record = self.made[work] = self.measure(work, directory)
        self.store.save(self.record_of(work), record)
        return self.said(record)

    def seconds(self, record: Any) -> float:
        """Time that a launch took."""
        return float(record["seconds"])

    def prepare(self, progress: Printed) -> None:  # noqa: B027
        """Before the first launch of a call."""

    def after(self, progress: Printed, work: Turn) -> None:  # noqa: B027
        """After a launch."""

    def dry_run(self) -> int:
        """Prints what `run` would launch and how long that takes; 0."""
        todo = [work for work in self.works if work not in self.made and self.will_run(work)]
        settings = {work.setting: work for work in self.works if work.repeat == 0}
        hosts = self.options.cluster
        lines = " ".join(f"{name}:{slots}" for name, slots in hosts.lines) if hosts else "this machine"
        print(f"hosts and slots: {lines}")
        print(f"{len(self.works)} launches for {len(settings)} settings; {len(self.made)} are made in "
              f"{self.store.directory}, {len(todo)} would be made. The first repeat:")  # fmt: skip
        for work in settings.values():
            words = shlex.join(map(str, self.command(work)))
            print(
                f"\n{self.title(work)}\n  {words.replace(str(self.store.folder), str(self.store.directory))}"
            )
        if self.made:
            seconds, why = self.seconds_left(todo), f"by the {len(self.made)} launches that are made"
        else:
            seconds, why = math.fsum(map(self.guess, todo)), f"by a rule of thumb: {self.rule}"
        print(f"\nabout {duration(seconds)} ({why}); nothing was launched")
        return 0

    def run(self, directory: Path) -> int:
        """Makes the launches that are missing; writes and prints the report. Returns 0, or 1 where a setting
        was wrong or failed.

        Raises:
            KeyboardInterrupt: after the partial report has been written.
        """
        interrupt: KeyboardInterrupt | None = None
        progress = Printed(lines=sys.stdout)  # a bar on a terminal, lines in a log
        progress.begin("", len(self.works), "launch", len(self.made))
        planned = False
        try:
            if len(self.made) < len(self.works):
                self.prepare(progress)
            for index, work in enumerate(self.works):
                runs = self.will_run(work)
                if work in self.made or not (runs or self.left_out):
                    continue
                progress.start(self.title(work))
                said = self.launch(work) if runs else Said(self.left_out)
                todo = [each for each in self.works[index + 1 :] if each not in self.made]
                left = self.seconds_left([each for each in todo if self.will_run(each)])
                words = f"about {duration(left)} left" if left else "none left"
                if said.others > BUSY:
                    words += f"; other programs took {percent(said.others)} of the machine"
                progress.finish(self.title(work), said.text, words, said.failed)
                self.after(progress, work)
                if todo and not planned and all(each.repeat > 1 for each in todo):
                    planned = True  # two repeats of all say how many it takes
                    found = self.report_of(list(self.made.values()), False)[0].content[PLANNING]
                    if found:
                        progress.note(found.sentence)
        except KeyboardInterrupt as signalled:
            interrupt = signalled
        finally:
            progress.end()
        records = [self.made[work] for work in self.works if work in self.made]
        report, failed = self.report_of(records, complete=interrupt is None)
        code = code_of(interrupt) if interrupt else int(bool(failed))
        report = report.ended(code, failed, complete=interrupt is None)
        paths = report.write(directory)
        print(report.terminal)
        print("\n".join(map(str, paths)), flush=True)
        if interrupt:
            print("interrupted; the same command continues", file=sys.stderr, flush=True)
            raise interrupt
        return code

    def seconds_left(self, todo: Sequence[Turn]) -> float:
        """Estimate for launches to come: each is taken to last as long as its like did, or else as all."""
        made = {work: self.seconds(record) for work, record in self.made.items()}
        total = 0.0
        for launch in todo:
            for kind in (*self.alike, lambda each: None):
                seconds = [taken for other, taken in made.items() if kind(other) == kind(launch)]
                if seconds:
                    total += statistics.median(seconds)
                    break
        return total
