"""Figures 3 and 9, attacks on saving: SIGKILL at random moments, and disks that are full, read-only or
limited at each write (of whole commands: tests/faults/fill_disk.py).

What saves is the real code, with small NumPy arrays and without MXNet. The children are forked by a process
of its own (`apart`), which has one thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import random
import select
import signal
import time
from pathlib import Path
from typing import Any, Callable, TypeVar

import numpy as np

from base.errors import InputError, TrainingError
from bert.weights.params_file import read_index
from tests.faults.disks import can_mount, full, limited, read_only, small_disk
from tests.faults.figure import ONCE, Damage, Parts, Program, Setting, Tally, endless, named
from training import checkpoint, saving
from training.report import Reporter
from training.saving import Saver

SIZE = 40_000  # elements of each of four parameters
SECONDS = 600.0  # for an attack
LIFE = 0.06  # seconds: kills come up to this long after a child has begun its first checkpoint
Result = TypeVar("Result")


def apart(function: Callable[..., Result], *given: Any) -> Result:
    """The result of a module's function in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(function, given).get(SECONDS)


def kills(number: int, seed: int, work: Path, damage: str = "") -> tuple[Tally, int]:
    """Kills a process that saves `number` times. After each kill no checkpoint may be half there, and of
    those begun at most the last may be missing. To be called where there is one thread.

    Returns:
        The outcome, and how many kills met a file that was being written.
    """
    generator, failures, caught = random.Random(seed), [], 0
    for _ in range(number):
        begun = _one_life(str(work), generator.uniform(0, LIFE), damage)
        caught += any(".tmp-" in name for name in os.listdir(work))
        failures.append(_whole(str(work), begun))
    return Tally.of(*failures, tried=number), caught


def _one_life(directory: str, seconds: float, damage: str) -> int:
    """Forks a process that saves, and kills it after `seconds` of its own processor time.

    By the clock it would be killed on a busy machine before it writes. Returns the last
    step that it began to save.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.close(reading)
            _save_for_ever(directory, writing, damage)
        os._exit(3)
    os.close(writing)
    try:
        select.select([reading], [], [], 600)
        clock = (~child << 3) | 2  # Linux's number for the processor time of that process
        begun, latest = time.clock_gettime(clock), time.monotonic() + 60  # where it waits for the disk
        while time.clock_gettime(clock) < begun + seconds and time.monotonic() < latest:
            time.sleep(0.0005)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the process that saves ended by itself"
        words = b"".join(iter(lambda: os.read(reading, 1 << 16), b"")).split()
        assert words, "the process that saves was killed before it began"
        return int(words[-1])
    finally:
        os.close(reading)


def _save_for_ever(directory: str, announce: int, damage: str) -> None:
    if damage:
        saving.save = DAMAGES[damage]
    step = max(checkpoint.list_steps(directory), default=0)
    parameters = {f"{i}.weight": np.zeros(SIZE, np.float32) for i in range(4)}
    states = {f"{i}.weight.mean": np.zeros(SIZE, np.float32) for i in range(4)}
    saver = Saver(directory, checkpoint.Kept(3), Reporter())
    while True:
        step += 1
        saver.sound()  # the update waits for the copy
        for array, sign in [
            *((each, 1) for each in parameters.values()),
            *((s, -1) for s in states.values()),
        ]:
            array[:] = sign * step
        saver.finish()  # else the announced step would be two ahead of the disk's
        os.write(announce, b"%d " % step)
        saver.begin(step, parameters, states, {"value": step})


def _careless_save(
    ckpt_dir: str, step: int, parameters: Any, states: Any, facts: Any, keep: Any = None
) -> Any:
    """Saves as many programs do: under the files' own names. The attacks must find it."""
    os.makedirs(ckpt_dir, exist_ok=True)
    writers: dict[str, Callable[[Any], None]] = {
        checkpoint.PARAMS: lambda file: checkpoint.write_params(file, parameters),
        checkpoint.STATES: lambda file: checkpoint.write_states(file, states),
    }
    files = {}
    for end, write in writers.items():
        write(copy := io.BytesIO())
        files[end] = {"size": copy.tell(), "sha256": hashlib.sha256(copy.getbuffer()).hexdigest()}
    manifest = {**facts, "format": checkpoint.FORMAT, "step": step, "files": files}
    manifest["sha256"] = checkpoint._checksum(manifest)
    try:
        Path(checkpoint.step_path(ckpt_dir, step, checkpoint.MANIFEST)).write_text(json.dumps(manifest))
        for end, write in writers.items():
            with open(checkpoint.step_path(ckpt_dir, step, end), "wb") as file:
                write(file)
    except OSError as error:
        raise TrainingError(f"step {step}: {error.strerror}; step {step - 1} is intact") from error
    for old in checkpoint.list_steps(ckpt_dir)[:-1]:
        os.remove(os.path.join(ckpt_dir, checkpoint.manifest_name(old)))


def _hasty_save(ckpt_dir: str, step: int, *given: Any, **named: Any) -> Any:
    """Makes room for the new checkpoint before it is there."""
    for old in checkpoint.list_steps(ckpt_dir) if os.path.isdir(ckpt_dir) else []:
        os.remove(os.path.join(ckpt_dir, checkpoint.manifest_name(old)))
    return checkpoint.save(ckpt_dir, step, *given, **named)


DAMAGES: dict[str, Callable[..., Any]] = {"careless": _careless_save, "hasty": _hasty_save}


def _whole(directory: str, begun: int) -> str:
    """Returns what is wrong with a directory in which step `begun` was begun last; empty for nothing."""
    messages: list[str] = []
    try:
        found = checkpoint.newest_complete(directory, messages.append)
        if found is None:
            return f"step {begun} was begun, and there is no checkpoint" if begun > 1 else ""
        if found.step < begun - 1:
            return f"step {begun} was begun, and step {found.step} is the newest: {messages}"
        assert found.manifest is not None
        if found.manifest["value"] != found.step:
            return f"the manifest of step {found.step} is of step {found.manifest['value']}"
        for name, tensor in read_index(found.params_path).items():
            if not (tensor.read() == found.step).all():
                return f"step {found.step}: {name} is of another step"
        with found.open_states() as states:
            for name in states:
                if not (states[name] == -found.step).all():
                    return f"step {found.step}: {name} is of another step"
    except (InputError, KeyError, OSError) as error:
        return f"step {begun}: {type(error).__name__} {error}"
    half = [step for step in checkpoint.list_steps(directory) if not _is_verified(directory, step)]
    return f"checkpoints of steps {half} look complete and are not" if half else ""


def _is_verified(directory: str, step: int) -> bool:
    try:
        checkpoint.verified(directory, step)
    except (InputError, KeyError):
        return False
    return True


def disks(work: Path, damage: str = "") -> Tally:
    """Has each write of a checkpoint fail: a limit to a file's size (as a quota gives it), and as root a
    small file system that is full, or has become read-only. Each time the error must name the step and the
    reason, the checkpoint before must stay the only one, and saving must work when the disk does again."""
    failures = []
    if damage:
        saving.save = DAMAGES[damage]
    for name, limits in (("params", (0, 100, 6_000, 15_900)), ("states", (0, 100, 6_000, 15_900, 16_100))):
        sizes = (4_000, 10) if name == "params" else (10, 4_000)
        for limit in limits:
            failures.append(_fails(work / f"limit-{name}-{limit}", sizes, lambda _, n=limit: limited(n)))
    # Files small beside the manifest: it is the one that does not fit.
    long = {"long": "x" * 4_000}
    failures.append(_fails(work / "limit-manifest", (10, 10), lambda _: limited(2_000), long))
    for pages in range(9) if can_mount(work) else ():
        with small_disk(work / f"full-{pages}") as place:
            failures.append(_fails(place, (4_000, 4_000), lambda path, n=pages: full(path, n)))
    if can_mount(work):
        with small_disk(work / "read-only") as place:
            failures.append(_fails(place, (10, 10), read_only))
    return Tally.of(*failures, tried=len(failures))


Trouble = Callable[[Path], "contextlib.AbstractContextManager[str]"]


def _fails(place: Path, sizes: tuple[int, int], trouble: Trouble, facts: dict[str, Any] | None = None) -> str:
    """Saves once, once more in `trouble` (which gives the reason that must be named), and again after it.
    Returns what was wrong."""
    directory = place / "ckpt"
    what = f"{place.name}: "
    try:
        with Saver(str(directory), checkpoint.Kept(1), Reporter()) as saver:
            _save(saver, 1, sizes, facts)
            before = {path.name: path.read_bytes() for path in directory.iterdir()}
            with trouble(directory) as reason:
                try:
                    _save(saver, 2, sizes, facts)
                    return what + "it was saved all the same"
                except TrainingError as error:
                    if not all(text in str(error) for text in ("step 2", reason, "step 1 is intact")):
                        return what + str(error)
            left = {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "ballast"}
            if left != before:
                return what + f"what is left is {sorted(left)}"
        with Saver(str(directory), checkpoint.Kept(1), Reporter()) as saver:
            _save(saver, 3, sizes, facts)
        found = checkpoint.newest_complete(str(directory), lambda message: None)
        return "" if found and found.step == 3 else what + "it could not be saved afterwards"
    except (Exception, KeyboardInterrupt) as error:
        return what + f"{type(error).__name__} {error}"


def _save(saver: Saver, step: int, sizes: tuple[int, int], facts: dict[str, Any] | None) -> None:
    parameters, states = (np.full(size, step, np.float32) for size in sizes)
    saver.begin(step, {"a": parameters}, {"a.mean": states}, facts or {})
    saver.take([saver.finish(), saver.finite])


# --- The figures.


def attempt_kills(setting: Setting, parts: Parts) -> Tally:
    """Kills at other moments in each case."""
    damage = NAMES.get(setting.damage, "")
    return apart(kills, int(parts["kills"]), int(parts["seed"]), setting.folder("saving"), damage)[0]


def attempt_disks(setting: Setting, parts: Parts) -> Tally:
    """All writes with all ways to fail, once: of checkpoints, or of whole commands."""
    if "commands" in parts:
        from tests.faults import fill_disk  # imports mxnet, which this module does without

        return apart(fill_disk.attack, setting.folder("saving"))
    return apart(disks, setting.folder("saving"), NAMES.get(setting.damage, ""))


NAMES = {
    "files are written under their own names": "careless",
    "older checkpoints are deleted before the new one is there": "hasty",
}
PROGRAM = Program(
    "3",
    "SIGKILL at random moments while checkpoints are saved",
    "500 of 500: no half file loaded, at most one checkpoint lost",
    weight=0.3,
    seconds=15,
    backends=(ONCE,),
    cases=endless({"kills": 50}),
    attempt=attempt_kills,
    damages={name: Damage(named(kills=50, seed=1), "step") for name in NAMES},
)
DISKS = Program(
    "9",
    "disk full, read-only, over a limit, at each write of a run, and of commands that prepare",
    "a clear error, the last checkpoint whole",
    weight=0.2,
    seconds=60,
    backends=(ONCE,),
    cases=lambda setting: [named(disks="all"), named(commands="all")],
    attempt=attempt_disks,
    damages={name: Damage(named(disks="all"), "what is left|no other checkpoint") for name in NAMES},
)
