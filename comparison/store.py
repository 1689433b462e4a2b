"""What a comparison keeps under --output, so that a second call continues the first.

plan.json                           what is compared: another call must agree with it
launches/SETTING/1/, 2/, ..., profile-1/, ...
                                    a launch: record.json (written last: without it the launch does not
                                    count), run.log, metrics.jsonl, trace.json, and the manifest of the last
                                    checkpoint, 0000060.json say
lock                                held while a comparison runs
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Mapping, Sequence

from base import machine
from base.errors import InputError
from base.files import replacing
from comparison.launching.backends import ROOT, Cluster
from comparison.launching.read_run import METRICS, Work
from comparison.launching.training import CKPT
from comparison.record import PROFILED, Record
from training.checkpoint import manifest_name

PLAN, LAUNCHES, RECORD, LOCK = "plan.json", "launches", "record.json", "lock"
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
    """A comparison's directory; in the block nobody else can use it.

    Args:
        directory: is made if need be.

    Raises:
        InputError: it cannot be written, another comparison is using it, or it holds something else.
    """

    def __init__(self, directory: str):
        self.directory = Path(directory).resolve()
        self._given = directory
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> Store:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            foreign = [name for name in _REPORTS if (self.directory / name).exists()]
            if foreign and not (self.directory / PLAN).exists():
                raise InputError(
                    f"--output {self._given}: holds a {foreign[0]} that is not of a comparison;"
                    " choose another directory"
                )
            self._lock = open(self.directory / LOCK, "wb")  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise InputError(f"--output {self._given}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise InputError(
                f"--output {self._given}: another comparison is using it; wait for it, or choose another"
                " directory"
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._lock is not None
        self._lock.close()

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
            earlier = json.loads(path.read_text(encoding="utf-8"))
            before = int(earlier.pop(REPEATS))
        except FileNotFoundError:
            earlier = None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} cannot be read ({error!r}); choose another --output, or remove the directory"
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
        with replacing(str(path)) as file:
            file.write(_json({**plan, REPEATS: repeats}))

    def directory_of(self, work: Work) -> Path:
        number = str(work.repeat + 1)
        name = f"profile-{number}" if work.kind == PROFILED else number
        return self.directory / LAUNCHES / work.setting.name / name

    def make_directory(self, work: Work) -> Path:
        """An empty directory for a launch; what a launch that was not finished has left there is removed."""
        directory = self.directory_of(work)
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        return directory

    def keep_outcome(self, work: Work, step: int) -> None:
        """Of the checkpoint directory the metrics are kept, and of the checkpoint of the last step, which is
        `step`, the manifest: it has the checksum of the parameters."""
        directory = self.directory_of(work)
        for name in (METRICS, manifest_name(step)):
            if (directory / CKPT / name).exists():
                os.replace(directory / CKPT / name, directory / name)
        shutil.rmtree(directory / CKPT, ignore_errors=True)

    def save(self, work: Work, record: Record) -> None:
        with replacing(str(self.directory_of(work) / RECORD)) as file:
            file.write(_json(record.to_json()))

    def load(self, work: Work) -> Record | None:
        """A finished launch, None for one that is still to be made."""
        path = self.directory_of(work) / RECORD
        try:
            return Record.from_json(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is damaged ({error}); remove it to have the launch repeated") from error


def what_counts(facts: Mapping[str, Any], axes: Mapping[str, Any], cluster: Cluster | None) -> dict[str, Any]:
    """The part of a plan that is not about training: axes, hosts, this machine, versions, the environment."""
    here = machine.describe(ROOT)
    return {
        **axes,
        **facts,
        "hosts": [list(line) for line in cluster.lines] if cluster else None,
        "machine": {name: here[name] for name in ("cpu", "cores")},
        "versions": versions(),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_VARIABLES) and not name.endswith(_PLACES)
        },
    }


def versions() -> dict[str, str]:
    """Of Python and of the packages that a run consists of, as far as they are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _differences(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words, one for each name."""
    found = []
    for name in sorted({*earlier, *now}):
        before, after = earlier.get(name), now.get(name)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            found += [f"{name}: {each}" for each in _differences(before, after)]
        else:
            found.append(f"{name} {_short(after)} instead of {_short(before)}")
    return found


def _short(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, (str, int)) for each in value):
        return " ".join(map(str, value))
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=1, allow_nan=False) + "\n").encode("utf-8")


def finished(store: Store, works: Sequence[Work]) -> dict[Work, Record]:
    """Those of the launches that are there already."""
    found = {work: store.load(work) for work in works}
    return {work: record for work, record in found.items() if record is not None}
