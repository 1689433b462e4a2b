"""Whole commands on disks that are full, read-only or limited, at each write: a run with all its files, and
the commands that prepare and convert. Each time there is one line, and nothing is half written.

    python -m tests.faults.fill_disk [--work FOLDER]      # as root; a minute
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence

from base.errors import InputError, TrainingError
from data import convert_npz, prepare, train_vocab
from hosts.launching.restarts import append
from tests.data.formats.samples import ragged, save_npz
from tests.faults.kill_saving import Outcome, _can_mount, _full, _limited, _read_only, _small_disk
from tests.processes import ROOT
from tests.training.small_runs import SANE, trained
from training.checkpoint import list_steps, newest_complete

STEPS = (*SANE, "--num_steps", "6", "--keep_checkpoints", "1")


class Writer(NamedTuple):
    """A command that writes into a folder. `sources`: makes what it reads, elsewhere."""

    name: str
    sources: Callable[[Path], None]
    run: Callable[[Path, Path], Any]
    pages: Sequence[int]  # free ones, with which it is tried


def _text(folder: Path) -> None:
    draw = random.Random(1)
    words = ["".join(draw.choice("abcdefghij") for _ in range(5)) for _ in range(200)]
    lines = [" ".join(draw.choices(words, k=9)) + " ." for _ in range(2_000)]
    (folder / "text.txt").write_text(
        "\n".join(f"{each}\n" if n % 9 == 0 else each for n, each in enumerate(lines))
    )
    given = ["--input", f"{folder}/text.txt", "--output", f"{folder}/vocab.txt", *_SIZE]
    code = _quietly(train_vocab.main, given)
    assert not code, code


def _instances(folder: Path) -> None:
    save_npz(str(folder / "instances.npz"), ragged(400, seed=1))


def _run(place: Path, sources: Path) -> Any:
    return trained(sources / "run", *STEPS, "--ckpt_dir", place / "run")


def _main(module: Any, *words: str) -> Callable[[Path, Path], Any]:
    def run(place: Path, sources: Path) -> Any:
        return module.main([word.format(place=place, sources=sources) for word in words])

    return run


def _restarts(place: Path, sources: Path) -> None:
    """The launcher's restarts report their OSError and go on: a full disk may be why the run has failed."""
    with contextlib.suppress(OSError):
        append(str(place / "run" / "restarts.jsonl"), {"text": "x" * 6_000})


_SIZE = ("--vocab_size", "150")
_TEXTS = ("--input", "{sources}/text.txt")
WRITERS = (
    Writer("run", lambda folder: None, _run, (*range(1, 8), 14, 24, 25, 26, 43)),
    Writer("restarts", lambda folder: None, _restarts, range(3)),
    Writer(
        "train_vocab", _text,
        _main(train_vocab, *_TEXTS, "--output", "{place}/vocab.txt", *_SIZE), range(2),
    ),
    Writer(
        "prepare", _text,
        _main(prepare, *_TEXTS, "--vocab", "{sources}/vocab.txt", "--output", "{place}/store"),
        range(0, 12, 2),
    ),
    Writer(
        "convert_npz", _instances,
        _main(convert_npz, "--input", "{sources}/instances.npz", "--output", "{place}/out"), range(0, 12, 3),
    ),
)  # fmt: skip


def run(work: Path, timeout: float = 600) -> Outcome:
    """Attacks in a process of its own, in the folder `work`."""
    command = [sys.executable, "-m", "tests.faults.fill_disk", "--work", str(work), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode in (0, 1) and done.stdout, done.stderr
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def attack(work: Path, writers: Sequence[Writer] = WRITERS) -> Outcome:
    """Tries each command with each number of free pages, on a read-only disk, and with a limit to files."""
    outcome = Outcome()
    if not _can_mount(work):
        return outcome
    for writer in writers:
        sources = work / f"{writer.name}-sources"
        sources.mkdir()
        writer.sources(sources)
        troubles = [(f"{pages} pages", lambda place, n=pages: _full(place, n)) for pages in writer.pages]
        troubles += [("read-only", lambda place: _read_only(place / "x"))]
        troubles += [(f"files of {limit}", lambda place, n=limit: _limited(n)) for limit in (500, 3_000)]
        for name, trouble in troubles:
            outcome.add(_attempt(writer, sources, work / f"{writer.name}-{name}".replace(" ", "-"), trouble))
    return outcome


def _attempt(writer: Writer, sources: Path, place: Path, trouble: Any) -> str | None:
    """Fault of one command in one trouble; None without."""
    with _small_disk(place):
        with trouble(place):
            said = _quietly(writer.run, place, sources)
        what = f"{place.name}: "
        if said and (len(said.splitlines()) != 1 or "Traceback" in said):
            return what + said[-300:]
        left = [str(path) for path in place.rglob("*") if ".tmp-" in path.name]
        if left:
            return f"{what}left {left}"
        if writer.name == "run":
            found = newest_complete(str(place / "run"), lambda message: None)
            steps = list_steps(str(place / "run"))
            if steps and (found is None or found.step != steps[-1]):
                return f"{what}the newest of {steps} is not whole"
        if not said:
            return None
        # When the disk is as it should be, the same command succeeds.
        again = _quietly(lambda *given: _again(writer, *given), place, sources)
        return f"{what}afterwards {again[-300:]}" if again else None


def _again(writer: Writer, place: Path, sources: Path) -> Any:
    if writer.name == "run":
        return trained(sources / "run", *STEPS, "--resume", "--ckpt_dir", place / "run")
    return writer.run(place, sources)


def _quietly(run: Callable[..., Any], *given: Any) -> str:
    """The error that a command ends with, as people see it; empty without one."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = run(*given)
        except (InputError, TrainingError) as error:
            return str(error)
        except Exception as error:
            return f"Traceback: {type(error).__name__} {error}\n"
    return (said.getvalue().strip().splitlines() or ["without a word"])[-1] if code else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Attacks; returns 1 if a command did not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, help="an existing folder; default: a temporary one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    work = Path(tempfile.mkdtemp(prefix="disks-", dir=options.work))
    try:
        outcome = attack(work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if options.json:
        print(json.dumps(asdict(outcome)))
    else:
        print(f"{outcome.held} of {outcome.tried} held", *outcome.failures, sep="\n")
    return int(bool(outcome.failures))


if __name__ == "__main__":
    sys.exit(main())
