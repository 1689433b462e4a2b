"""Whole commands on disks that are full, read-only or limited, at each write: a run with all its files, and
the commands that prepare and convert. Each time there is one line, and nothing is half written.
"""

from __future__ import annotations

import contextlib
import io
import random
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence

from base.errors import InputError, TrainingError
from data import convert_npz, prepare, train_vocab
from hosts.launching.restarts import append
from tests.data.formats.samples import ragged, save_npz
from tests.faults.disks import can_mount, full, limited, read_only, small_disk
from tests.faults.figure import Tally
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


def _run(place: Path, sources: Path, more: Sequence[str] = ()) -> Any:
    return trained(sources / "run", *STEPS, *more, "--ckpt_dir", place / "run")


def _main(module: Any, *words: str) -> Callable[[Path, Path], Any]:
    def run(place: Path, sources: Path) -> Any:
        return module.main([word.format(place=place, sources=sources) for word in words])

    return run


def _restarts(place: Path, sources: Path) -> None:
    # The launcher's restarts report their OSError and go on: a full disk may be why the run has failed.
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


def attack(work: Path, writers: Sequence[Writer] = WRITERS) -> Tally:
    """Tries each command with each number of free pages, on a read-only disk, and with a limit to files."""
    failures: list[str] = []
    for writer in writers if can_mount(work) else ():
        sources = work / f"{writer.name}-sources"
        sources.mkdir()
        writer.sources(sources)
        troubles = [(f"{pages} pages", lambda place, n=pages: full(place, n)) for pages in writer.pages]
        troubles += [("read-only", lambda place: read_only(place / "x"))]
        troubles += [(f"files of {limit}", lambda place, n=limit: limited(n)) for limit in (500, 3_000)]
        for name, trouble in troubles:
            place = work / f"{writer.name}-{name}".replace(" ", "-")
            failures.append(_attempt(writer, sources, place, trouble))
    return Tally.of(*failures, tried=len(failures))


def _attempt(writer: Writer, sources: Path, place: Path, trouble: Any) -> str:
    """Fault of one command in one trouble; empty without."""
    with small_disk(place):
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
            return ""
        # When the disk is as it should be, the same command succeeds.
        run = partial(_run, more=["--resume"]) if writer.name == "run" else writer.run
        again = _quietly(run, place, sources)
        return f"{what}afterwards {again[-300:]}" if again else ""


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
