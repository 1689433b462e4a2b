"""Attacks on saving: SIGKILL at random moments, and disks that are full, read-only or limited at each write.

    python -m tests.faults.kill_saving kills --number 500       # about a minute
    python -m tests.faults.kill_saving disks
    python -m tests.faults.kill_saving kills --damage careless  # which the attack must find: exit code 1

What saves is the real code, with small NumPy arrays and without MXNet. The children are forked by a process
that has imported nothing else (`run` starts one), so that hundreds of kills take a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import numpy as np

from base.errors import InputError, TrainingError
from bert.weights.params_file import read_index
from tests.processes import ROOT
from training import checkpoint, saving
from training.saving import Saver

SIZE = 40_000  # elements of each of four parameters
LIFE = 0.06  # seconds: kills come up to this long after a child has begun its first checkpoint


@dataclass
class Outcome:
    """An attack: how often it was tried, how often saving held, and what was wrong elsewhere. `caught`: how
    many kills met a file that was being written."""

    tried: int = 0
    held: int = 0
    caught: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, failure: str | None) -> None:
        self.tried += 1
        self.held += failure is None
        if failure is not None:
            self.failures.append(failure)


class _Mute:
    def note(self, message: str) -> None:
        pass

    warn = note


def run(attack: str, work: Path, *words: str, timeout: float = 600) -> Outcome:
    """Runs `kills` or `disks` in a process of its own, in the folder `work`."""
    command = [
        sys.executable,
        "-m",
        "tests.faults.kill_saving",
        attack,
        "--work",
        str(work),
        "--json",
        *words,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode in (0, 1) and done.stdout, done.stderr
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def kills(number: int, seed: int, work: Path, damage: str = "") -> Outcome:
    """Kills a process that saves `number` times. After each kill no checkpoint may be half there, and of
    those begun at most the last may be missing. To be called where there is one thread."""
    generator, outcome = random.Random(seed), Outcome()
    directory = str(work / "kills")
    for _ in range(number):
        begun = _one_life(directory, generator.uniform(0, LIFE), damage)
        outcome.caught += any(".tmp-" in name for name in os.listdir(directory))
        outcome.add(_whole(directory, begun))
    return outcome


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
    saver = Saver(directory, 3, _Mute())  # type: ignore[arg-type]
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


def _careless_save(ckpt_dir: str, step: int, parameters: Any, states: Any, facts: Any, keep: int = 0) -> Any:
    """Saves as many programs do: under the files' own names. The attacks must find it."""
    os.makedirs(ckpt_dir, exist_ok=True)
    manifest = {**checkpoint._manifest(step, facts), "files": {}}
    path = os.path.join(ckpt_dir, checkpoint.manifest_name(step))
    with open(path, "w", encoding="utf-8") as file:
        json.dump({**manifest, "sha256": checkpoint._checksum(manifest)}, file)
    with open(checkpoint.params_path(ckpt_dir, step), "wb") as params_file:
        checkpoint.write_params(params_file, parameters)
    for old in checkpoint.list_steps(ckpt_dir)[:-1]:
        os.remove(os.path.join(ckpt_dir, checkpoint.manifest_name(old)))


def _hasty_save(ckpt_dir: str, step: int, *given: Any, **named: Any) -> Any:
    """Makes room for the new checkpoint before it is there."""
    for old in checkpoint.list_steps(ckpt_dir) if os.path.isdir(ckpt_dir) else []:
        os.remove(os.path.join(ckpt_dir, checkpoint.manifest_name(old)))
    return checkpoint.save(ckpt_dir, step, *given, **named)


DAMAGES: dict[str, Callable[..., Any]] = {"careless": _careless_save, "hasty": _hasty_save}


def _whole(directory: str, begun: int) -> str | None:
    """Returns what is wrong with a directory in which step `begun` was begun last."""
    messages: list[str] = []
    try:
        found = checkpoint.newest_complete(directory, messages.append)
        if found is None:
            return f"step {begun} was begun, and there is no checkpoint" if begun > 1 else None
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
    return f"checkpoints of steps {half} look complete and are not" if half else None


def _is_verified(directory: str, step: int) -> bool:
    try:
        checkpoint.verified(directory, step)
    except (InputError, KeyError):
        return False
    return True


def disks(work: Path, damage: str = "") -> Outcome:
    """Has each write of a checkpoint fail: a limit to a file's size (as a quota gives it), and as root a
    small file system that is full, or has become read-only. Each time the error must name the step and the
    reason, the checkpoint before must stay the only one, and saving must work when the disk does again."""
    outcome = Outcome()
    if damage:
        saving.save = DAMAGES[damage]
    for name, limits in (("params", (0, 100, 6_000, 15_900)), ("states", (0, 100, 6_000, 15_900, 16_100))):
        sizes = (4_000, 10) if name == "params" else (10, 4_000)
        for limit in limits:
            outcome.add(_fails(work / f"limit-{name}-{limit}", sizes, lambda _, n=limit: _limited(n)))
    # Files small beside the manifest: it is the one that does not fit.
    outcome.add(_fails(work / "limit-manifest", (10, 10), lambda _: _limited(2_000), {"long": "x" * 4_000}))
    for pages in range(9) if _can_mount(work) else ():
        with _small_disk(work / f"full-{pages}") as place:
            outcome.add(_fails(place, (4_000, 4_000), lambda path, n=pages: _full(path, n)))
    if _can_mount(work):
        with _small_disk(work / "read-only") as place:
            outcome.add(_fails(place, (10, 10), _read_only))
    return outcome


Trouble = Callable[[Path], "contextlib.AbstractContextManager[str]"]


def _fails(
    place: Path, sizes: tuple[int, int], trouble: Trouble, facts: dict[str, Any] | None = None
) -> str | None:
    """Saves once, once more in `trouble` (which gives the reason that must be named), and again after it.
    Returns what was wrong."""
    directory = place / "ckpt"
    what = f"{place.name}: "
    try:
        with Saver(str(directory), 1, _Mute()) as saver:  # type: ignore[arg-type]
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
        with Saver(str(directory), 1, _Mute()) as saver:  # type: ignore[arg-type]
            _save(saver, 3, sizes, facts)
        found = checkpoint.newest_complete(str(directory), lambda message: None)
        return None if found and found.step == 3 else what + "it could not be saved afterwards"
    except (Exception, KeyboardInterrupt) as error:
        return what + f"{type(error).__name__} {error}"


def _save(saver: Saver, step: int, sizes: tuple[int, int], facts: dict[str, Any] | None) -> None:
    parameters, states = (np.full(size, step, np.float32) for size in sizes)
    saver.begin(step, {"a": parameters}, {"a.mean": states}, facts or {})
    saver.take([saver.finish(), saver.finite])


@contextlib.contextmanager
def _limited(limit: int) -> Iterator[str]:
    """No file may be larger; Python ignores the signal that comes with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield "File too large"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def _full(directory: Path, pages: int) -> Iterator[str]:
    """All but so many pages of the file system are taken."""
    ballast = directory / "ballast"
    status = os.statvfs(directory)
    ballast.write_bytes(bytes((status.f_bavail - pages) * status.f_frsize))
    try:
        yield "No space left on device"
    finally:
        ballast.unlink()


@contextlib.contextmanager
def _read_only(directory: Path) -> Iterator[str]:
    place = str(directory.parent)
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)
    try:
        yield "Read-only file system"
    finally:
        subprocess.run(["mount", "-o", "remount,rw", place], check=True)


@contextlib.contextmanager
def _small_disk(place: Path) -> Iterator[Path]:
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _can_mount(work: Path) -> bool:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    try:
        with _small_disk(work / "trial"):
            return True
    except subprocess.CalledProcessError:
        return False
    finally:
        shutil.rmtree(work / "trial", ignore_errors=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Attacks; returns 1 if saving did not hold once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("attack", choices=["kills", "disks"])
    parser.add_argument("--number", type=int, default=500, help="kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="an existing folder; default: a temporary one")
    parser.add_argument("--damage", default="", choices=DAMAGES, help="saves so: the attack must find it")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    work = Path(tempfile.mkdtemp(prefix="saving-", dir=options.work))
    try:
        if options.attack == "kills":
            (work / "kills").mkdir()
            outcome = kills(options.number, options.seed, work, options.damage)
        else:
            outcome = disks(work, options.damage)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if options.json:
        print(json.dumps(asdict(outcome)))
    else:
        print(f"{outcome.held} of {outcome.tried} held, {outcome.caught} met a file that was being written")
        print(*outcome.failures[:20], sep="\n")
    return int(bool(outcome.failures))


if __name__ == "__main__":
    sys.exit(main())
