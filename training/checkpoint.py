"""Checkpoints: three files a step, the last of which makes the other two count.

    0002000.params       the model's parameters, as GluonNLP's Block.save_parameters writes them
    0002000.states.npz   the optimizer's states as plain arrays
    0002000.json         the manifest: sha256 and size of both, model, options, scaler, seed, data position,
    ...

Every file is written under a temporary name, synced and renamed, the manifest after the other two; a
checkpoint without a valid manifest does not exist. A run that is killed, or whose disk is full, at any
moment of saving leaves the earlier checkpoints as they were. This module does not import mxnet: a checkpoint
of another model can be rejected before that.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import platform
import re
import sys
from dataclasses import dataclass
from typing import IO, Any, Callable, ContextManager, Iterable, Mapping, NamedTuple, Sequence

import numpy as np

from base.command_line import LARGEST, MOST, MOST_RANKS, MOST_SEED
from base.errors import InputError, TrainingError
from base.files import leads_out, replacing, sha256_of, sync_directory
from base.json_files import read_json_object
from bert.configuration import recorded_config
from bert.weights.params_file import write_params
from training.guard import is_history
from training.optimizer.scaler import are_skips, is_state
from training.states_file import open_states, write_states

FORMAT = 1
_BLOCK = 1 << 20  # bytes written at once
PARAMS, STATES, MANIFEST = ".params", ".states.npz", ".json"
_ASIDE = ".aside"  # an empty file beside a checkpoint that is whole and from which no step could be taken
OWN = ("format", "step", "versions", "time", "files", "sha256")  # a manifest's entries that `save` makes
BEST_FILE = "best.json"  # of training.last_good; BEST stands for its step in FOLDER:STEP
BEST = "best"
_MOST_MANIFEST = 16 << 20  # bytes; options are kilobytes
_MOST_BYTES = 1 << 50  # of a file
_MOST_TOKENS = 1 << 24  # of a vocabulary
_MOST_POSITION = 1 << 52  # a million epochs: an epoch's number stands above 32 bits (PretrainingBatches)
_MOST_SECONDS = 1e12
_HEXADECIMAL = set("0123456789abcdef")
_NUMBERED = re.compile(r"(\d{7,})" + re.escape(PARAMS))
LIBRARIES = ("numpy", "mxnet", "gluonnlp", "horovod", "byteps")
# What `base.files.replacing` calls these files before they are complete.
_TEMPORARY = re.compile(r"\d{7,}(\.params|\.states\.npz|\.json|\.aside)\.tmp-[-0-9a-f]+")
# The same of a run's other files, with the process: this one may be writing them beside a checkpoint.
_TEMPORARY_BESIDE = re.compile(r"(loss\.png|metrics\.jsonl|best\.json)\.tmp-(\d+)-[0-9a-f]+")

Check = Callable[[Any], bool]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk. `manifest` is None for a .params file alone, without states."""

    step: int
    params_path: str
    manifest: dict[str, Any] | None

    def open_states(self) -> ContextManager[Mapping[str, np.ndarray]]:
        """The optimizer states by name, each loaded when asked for.

        Raises:
            InputError: there is no such file, or it is not an archive of plain arrays; nothing is ever
                unpickled.
        """
        return open_states(self.params_path[: -len(PARAMS)] + STATES)


class Kept(NamedTuple):
    """Checkpoints that are never deleted: the `newest` so many, or 0 for all, and beside them those whose
    step is a multiple of `interval`, or 0 for none."""

    newest: int = 0
    interval: int = 0


KEEP_ALL = Kept()


def save(
    ckpt_dir: str,
    step: int,
    parameters: Mapping[str, Any],
    states: Mapping[str, Any],
    facts: Mapping[str, Any],
    keep: Kept = KEEP_ALL,
) -> Checkpoint:
    """Write the checkpoint of `step`; one rank does it.

    One that exists for the same step is replaced. A kill at any moment leaves every other step's checkpoint
    valid, and this step's too unless its content changes: three files cannot be exchanged at once.

    Args:
        parameters: MXNet or NumPy arrays by structural name, copied one at a time.
        states: arrays by name (`Optimizer.state_views`).
        facts: JSON values for the manifest: model, vocabulary size and hash, world size, options, scaler,
            seed, data position; the manifest's own entries (format, step, files, ...) are added.
        keep: delete all others up to this step. That of the step `begun` of the facts, the end of stage 1, is
            never deleted.

    Raises:
        ValueError, TypeError: an array or fact that cannot be written.
        TrainingError: the disk is full or another I/O error. Earlier checkpoints are intact, the
            temporary files are removed.
    """
    own = {
        "format": FORMAT,
        "step": step,
        "versions": library_versions(),
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    # In the form in which JSON gives it back; what it cannot hold is rejected before anything is written.
    manifest = json.loads(json.dumps({**facts, **own}, allow_nan=False))
    try:
        os.makedirs(ckpt_dir, exist_ok=True)
        for name in os.listdir(ckpt_dir):  # temporary files of a killed run; only names that runs give
            beside = _TEMPORARY_BESIDE.fullmatch(name)
            if _TEMPORARY.fullmatch(name) or (beside and int(beside[2]) != os.getpid()):
                os.remove(os.path.join(ckpt_dir, name))
        with contextlib.ExitStack() as stack:
            # All is on the disk when the stack unwinds and each file gets its name: states, parameters and,
            # last, the manifest.
            manifest_file = stack.enter_context(replacing(step_path(ckpt_dir, step, MANIFEST)))
            params_file = _Summed(stack.enter_context(replacing(step_path(ckpt_dir, step, PARAMS))))
            states_file = _Summed(stack.enter_context(replacing(step_path(ckpt_dir, step, STATES))))
            write_params(params_file, parameters)
            write_states(states_file, states)
            manifest["files"] = {PARAMS: params_file.sync(), STATES: states_file.sync()}
            complete = {**manifest, "sha256": _checksum(manifest)}
            manifest_file.write(json.dumps(complete, indent=1, sort_keys=True).encode() + b"\n")
            manifest_file.flush()
            os.fsync(manifest_file.fileno())
            _withdraw_other(ckpt_dir, step, manifest["files"])
            with contextlib.suppress(FileNotFoundError):
                os.remove(step_path(ckpt_dir, step, _ASIDE))
    except OSError as error:
        kept = [other for other in list_steps(ckpt_dir) if other != step]
        raise TrainingError(
            f"cannot save the checkpoint of step {step} in {ckpt_dir}: {error.strerror or error}; "
            + (f"the checkpoint of step {kept[-1]} is intact" if kept else "there is no other checkpoint")
        ) from error
    prune(ckpt_dir, step, keep, facts.get("begun"))
    return Checkpoint(step, params_path(ckpt_dir, step), manifest)


def list_steps(ckpt_dir: str) -> list[int]:
    """Steps that have a manifest, ascending; the files are not looked into. Empty without a directory."""
    return _steps_with(ckpt_dir, MANIFEST)


def newest_complete(
    ckpt_dir: str, report: Callable[[str], None], needed: Sequence[str] = (PARAMS, STATES)
) -> Checkpoint | None:
    """The newest checkpoint whose files have the manifest's sizes and sha256, None if there is none.

    Each newer one that is damaged, was never completed or was set aside is named through `report`, one line
    each, and passed over. Of the two files only those `needed` are looked at.
    """
    committed = set(list_steps(ckpt_dir))
    for step in sorted(committed | set(_steps_with(ckpt_dir, PARAMS)), reverse=True):
        if step not in committed:
            report(f"{params_path(ckpt_dir, step)} has no manifest (its saving was interrupted): passed over")
            continue
        if os.path.lexists(step_path(ckpt_dir, step, _ASIDE)):
            report(
                f"{params_path(ckpt_dir, step)}: no step was taken after it: passed over "
                f"(--start_step {step} takes it all the same)"
            )
            continue
        try:
            return verified(ckpt_dir, step, needed)
        except InputError as error:
            report(f"{error}: passed over")
    return None


def set_aside(ckpt_dir: str, step: int) -> bool:
    """Has `newest_complete` pass over the checkpoint of `step`, until it is saved again, if there is an older
    one to go back to. Returns whether there is. OSError where the disk does not take it."""
    older = [other for other in list_steps(ckpt_dir) if other < step]
    if all(os.path.lexists(step_path(ckpt_dir, other, _ASIDE)) for other in older):
        return False
    with replacing(step_path(ckpt_dir, step, _ASIDE)):
        return True


def load_step(ckpt_dir: str, step: int) -> Checkpoint:
    """The checkpoint of one step, verified; a .params file without a manifest, as GluonNLP's scripts leave
    it, is taken too.

    Raises:
        InputError: there is none for this step, or it is damaged.
    """
    if step in list_steps(ckpt_dir):
        return verified(ckpt_dir, step)
    path = params_path(ckpt_dir, step)
    if not os.path.isfile(path):
        steps = list_steps(ckpt_dir)
        available = f"available: {', '.join(map(str, steps))}" if steps else "there is none in --ckpt_dir"
        raise InputError(f"--start_step {step}: no checkpoint {path}; {available}")
    return Checkpoint(step, path, None)


def verified(ckpt_dir: str, step: int, needed: Sequence[str] = (PARAMS, STATES)) -> Checkpoint:
    """The checkpoint of a step that has a manifest, after a look at the files that are `needed`.

    Raises:
        InputError: the manifest or one of them is missing or damaged.
    """
    manifest = read_manifest(ckpt_dir, step)
    for extension in needed:
        path = step_path(ckpt_dir, step, extension)
        expected = manifest["files"][extension]
        try:
            if leads_out(path):
                raise InputError(f"{path} is a symbolic link out of its folder, which is not followed")
            if not os.path.isfile(path):
                raise InputError(f"the checkpoint's file {path} is missing, or no regular file")
            size = os.path.getsize(path)
            if size != expected["size"]:
                raise InputError(f"{path} is damaged ({size} bytes instead of {expected['size']})")
            if sha256_of(path) != expected["sha256"]:
                raise InputError(f"{path} is damaged (its sha256 is not the manifest's)")
        except OSError as error:
            raise InputError(f"the checkpoint's file {path} cannot be read: {error.strerror}") from error
        if extension == STATES:
            with open_states(path):  # which looks at all headers
                pass
    return Checkpoint(step, params_path(ckpt_dir, step), manifest)


def read_manifest(ckpt_dir: str, step: int) -> dict[str, Any]:
    """The manifest of a step, checked in itself but not against the files.

    Raises:
        InputError: it is missing, damaged or of another version of this format.
    """
    path = step_path(ckpt_dir, step, MANIFEST)
    if leads_out(path):
        raise InputError(f"the manifest {path} is a symbolic link out of its folder, which is not followed")
    manifest = read_json_object(path, _MOST_MANIFEST, f"the manifest {path}")
    if manifest.pop("sha256", None) != _checksum(manifest):
        raise InputError(f"the manifest {path} is damaged (its own sha256 does not fit)")
    if manifest.get("format") != FORMAT or manifest.get("step") != step:
        found = f"format {manifest.get('format')!r}, step {manifest.get('step')!r}"
        raise InputError(f"the manifest {path} is of {found}, needed is format {FORMAT}, step {step}")
    _check_facts(manifest, f"the manifest {path}")
    return manifest


def manifest_name(step: int) -> str:
    """The name of a step's manifest in its directory."""
    return f"{step:07d}{MANIFEST}"


def params_path(ckpt_dir: str, step: int) -> str:
    """The parameters' file of a checkpoint."""
    return step_path(ckpt_dir, step, PARAMS)


def step_of(path: str) -> int | None:
    """The step of a checkpoint whose parameters' file this is, by its name; None for another file."""
    match = _NUMBERED.fullmatch(os.path.basename(path))
    return int(match[1]) if match else None


def library_versions() -> dict[str, str]:
    """Versions of Python and of those LIBRARIES that this process has imported."""
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in LIBRARIES}
    return {"python": platform.python_version(), **{name: v for name, v in loaded.items() if v}}


def step_path(ckpt_dir: str, step: int, extension: str) -> str:
    """A file of a checkpoint."""
    return os.path.join(ckpt_dir, f"{step:07d}{extension}")


def _steps_with(ckpt_dir: str, extension: str) -> list[int]:
    pattern = re.compile(r"(\d{7,})" + re.escape(extension))
    names: Iterable[str] = os.listdir(ckpt_dir) if os.path.isdir(ckpt_dir) else ()
    return sorted(int(match[1]) for match in map(pattern.fullmatch, names) if match)


class _Summed:
    """A file that is written from its beginning to its end, with the SHA-256 of what was written.

    A block is small enough to be in the processor's cache for all that is done with it: a file's bytes go
    through memory once. (`zipfile` writes to what cannot seek, as this, without going back.)
    """

    def __init__(self, file: IO[bytes]):
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _BLOCK):
            block = view[start : start + _BLOCK]
            self._digest.update(block)
            self._file.write(block)
        self._size += len(view)
        return len(view)

    def flush(self) -> None:
        self._file.flush()

    def sync(self) -> dict[str, Any]:
        """Brings what was written to the disk, and describes it as the manifest does."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"size": self._size, "sha256": self._digest.hexdigest()}


def _checksum(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _withdraw_other(ckpt_dir: str, step: int, files: Mapping[str, Any]) -> None:
    """Remove an older manifest of the same step unless it describes the same files: it must not stand beside
    new ones."""
    path = step_path(ckpt_dir, step, MANIFEST)
    if os.path.exists(path):
        with contextlib.suppress(InputError):
            if read_manifest(ckpt_dir, step)["files"] == files:
                return
        os.remove(path)
        sync_directory(ckpt_dir)


def prune(ckpt_dir: str, step: int, keep: Kept, spared: int | None) -> None:
    """Delete all checkpoints up to `step` but those of `keep`, that of the step `spared`, and the best. A
    failure to delete does not matter to the run: the next save tries again."""
    others = {spared}
    with contextlib.suppress(InputError):
        others.add(best_step(ckpt_dir))
    steps = [other for other in list_steps(ckpt_dir) if other <= step and other not in others]
    for old in steps[: -keep.newest] if keep.newest else ():
        if keep.interval and old % keep.interval == 0:
            continue
        with contextlib.suppress(OSError):
            # The manifest first: what is left by a kill in between does not look complete.
            for extension in (MANIFEST, STATES, PARAMS):
                os.remove(step_path(ckpt_dir, old, extension))
            os.remove(step_path(ckpt_dir, old, _ASIDE))


def best_step(ckpt_dir: str) -> int:
    """The step that best.json names.

    Raises:
        InputError: there is none, or it is damaged.
    """
    path = os.path.join(ckpt_dir, BEST_FILE)
    step = read_json_object(path, _MOST_MANIFEST, path).get("step")
    if type(step) is not int or step < 0:
        raise InputError(f"{path} names no step of a checkpoint")
    return step


def _check_facts(manifest: Mapping[str, Any], source: str) -> None:
    """Checks types and ranges of a manifest's entries: a checksum says that nothing was changed by accident,
    not that a run can go on with it. Entries that are not there are not missed: older versions wrote fewer,
    and who needs one says so. Raises InputError, which begins with the `source` and names the entry."""
    for name, (check, wanted) in _ENTRIES.items():
        if name in manifest and not check(manifest[name]):
            raise InputError(f"{source} is damaged: {name} is not {wanted}")
    described = manifest.get("files")
    if not isinstance(described, dict) or set(described) != {PARAMS, STATES}:
        raise InputError(f"{source} is damaged: it does not describe the files {PARAMS}, {STATES}")
    for name, entry in described.items():
        size, checksum = (entry.get("size"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        if not (_whole(0, _MOST_BYTES)(size) and _is_checksum(checksum)):
            raise InputError(f"{source} is damaged: it describes {name} by no size and sha256")
    if "begun" in manifest and manifest["begun"] > manifest["step"]:
        raise InputError(f"{source} is damaged: its schedule begins after its step")
    if "skips" in manifest and manifest["skips"]["total"] > manifest["step"]:
        raise InputError(f"{source} is damaged: its skips are more than its steps")
    if manifest.get("bert") is not None:
        recorded_config(manifest, source)


def _whole(least: int, most: int) -> Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _number(least: float, most: float) -> Check:
    # A NaN is in no range; a whole number of any size is compared as it is.
    return lambda value: (
        isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
    )


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _is_checksum(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= _HEXADECIMAL


def _options(value: Any) -> bool:
    """Whether it holds options by name; of their values those are checked with which a run computes."""
    if not isinstance(value, dict):
        return False
    whole = _whole(1, MOST)
    # Fine-tuning may have no interval: it saves at the end alone.
    interval = value.get("ckpt_interval")
    if not (interval is None or whole(interval)) or not whole(value.get("accumulate", 1)):
        return False
    return all(_number(0, LARGEST)(value[name]) for name in _OF_THE_OPTIMIZER if name in value)


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is(kind: type) -> Check:
    return lambda value: isinstance(value, kind)


_OF_THE_OPTIMIZER = ("beta1", "beta2", "epsilon", "weight_decay")
# Name: what it must be, in code and in words.
_ENTRIES: dict[str, tuple[Check, str]] = {
    "step": (_whole(0, MOST), "a whole number of steps"),
    "versions": (_is(dict), "an object"),
    "model": (_is(str), "a name"),
    "bert": (_or_none(_is(dict)), "an object"),
    "vocab_size": (_whole(1, _MOST_TOKENS), "a number of tokens"),
    "vocab_sha256": (_or_none(_is_checksum), "a sha256"),
    "vocabulary": (_or_none(_is(dict)), "an object"),
    "classes": (_or_none(_names), "a list of names"),
    "stage": (_or_none(_whole(1, 2)), "1, 2 or null"),
    "begun": (_whole(0, MOST), "a whole number of steps"),
    "num_steps": (_or_none(_whole(1, MOST)), "a whole number of steps"),
    "ended": (_is(bool), "true or false"),
    "world_size": (_whole(1, MOST_RANKS), f"a number of processes, at most {MOST_RANKS:,}"),
    "processes": (_whole(1, MOST_RANKS), f"a number of processes, at most {MOST_RANKS:,}"),
    "options": (_options, "an object with options that a run can have"),
    "scaler": (is_state, "a loss scale that a run can have"),
    "skips": (are_skips, "two counts of skipped steps, those in a row among all"),
    "guard": (is_history, "a history of losses and gradient norms"),
    "seed": (_whole(0, MOST_SEED), f"a seed, at most {MOST_SEED}"),
    "blocks": (
        _whole(0, _MOST_POSITION),
        f"a position in the data, at most 2^{_MOST_POSITION.bit_length() - 1}",
    ),
    "ckpt_interval": (_whole(1, MOST), "a whole number of steps"),
    "eval_interval": (_whole(1, MOST), "a whole number of steps"),
    "training_s": (_number(0, _MOST_SECONDS), "a number of seconds"),
    "rescued": (_is(bool), "true or false"),
    "wall_s": (_or_none(_number(0, _MOST_SECONDS)), "a number of seconds"),
}
