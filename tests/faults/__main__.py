"""Measure how reliable runs are: thirteen figures, each tried as often as the time allows.

    python -m tests.faults --minutes 240 --anew                    # all, to docs/reliability.md
    python -m tests.faults --minutes 10 --figures 1,7 --backends byteps
    python -m tests.faults --figures 1 --backends byteps --case first=7,accumulate=3   # one case again
    python -m tests.faults --minutes 60 --damage                   # what each figure notices

Rule of thumb: a case starts two processes once or twice and takes 20 to 60 s on two cores; 240 minutes try
every case of most figures. Run it on a machine that does nothing else: limits of seconds are part of some
figures. It ends with 1 if anything failed, with 2 for bad options, with 130 or 143 when it was stopped, and
leaves neither processes nor files but the page and its JSON. Needs root, for namespaces and small disks.

The programs: catalogue.py. In order: figure (the words of it), jobs (the run that is attacked), a module for
each figure, measuring (time and order), report (the page).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Sequence

from base.command_line import positive
from base.errors import InputError
from base.machine import describe
from tests.faults.catalogue import PROGRAMS
from tests.faults.figure import BACKENDS, Figure
from tests.faults.measuring import Caught, Clock, Plan, measure, tally_of, try_damages, units_of
from tests.faults.report import Page, read, shown, write
from tests.processes import MARKER, ROOT, environ_of

PAGE = ROOT / "docs" / "reliability.md"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    chosen = options.figures or [each.number for each in PROGRAMS if not each.by_hand]
    programs = [each for each in PROGRAMS if each.number in chosen]
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")  # ranks are as many as cores
    facts = _facts(options)
    fresh = options.output is None or options.anew or options.case
    page = Page() if fresh else read(options.output.with_suffix(".json"))
    try:
        page.check(facts, options.output)
        if options.output is not None:
            options.output.parent.mkdir(parents=True, exist_ok=True)
    except InputError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"--output {options.output}: {error.strerror}")
    clock = Clock(options.minutes)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, clock.stop)
    folder = Path(tempfile.mkdtemp(prefix="reliability-"))
    try:
        earlier = {(each.figure.number, each.figure.backend): each.figure for each in page.figures}
        plan = Plan(units_of(programs, options.backends), options.seed, folder, earlier)
        if options.case:
            return _try_case(plan, options.case)
        return _measure(plan, options, clock, partial(page.with_results, facts))
    finally:
        _end_processes()
        shutil.rmtree(folder, ignore_errors=True)


def _measure(plan: Plan, options: argparse.Namespace, clock: Clock, page_with: Callable[..., Page]) -> int:
    figures: dict[tuple[str, str], Figure] = {}
    damages: list[Caught] = []
    due = time.monotonic()

    def save() -> None:
        if options.output is not None:
            write(page_with(figures.values(), damages), PROGRAMS, options.output)

    def keep(result: Figure | Caught) -> None:
        nonlocal due
        if isinstance(result, Figure):
            figures[result.number, result.backend] = result
        else:
            damages.append(result)
        if time.monotonic() >= due:  # the page has it, whatever happens in the hours after it
            save()
            due = time.monotonic() + 60.0

    with contextlib.suppress(SystemExit):
        if options.damage:
            try_damages(plan, clock, keep)
        else:
            measure(plan, clock, keep)
    print(shown(Page().with_results({}, figures.values(), damages), PROGRAMS), flush=True)
    save()
    if options.output is not None:
        print(f"\n{options.output}, {options.output.with_suffix('.json')}", flush=True)
    failed = any(each.tried and not each.holds for each in figures.values())
    if clock.stopped_by:
        return 128 + clock.stopped_by
    return int(failed or any(each.noticed is False for each in damages))


def _try_case(plan: Plan, case: str) -> int:
    """Tries one case on each unit, and says what happened."""
    failed = False
    for program, backend in plan.units:
        tally = tally_of(program, plan.setting(program, backend), case)
        failed |= tally.held < tally.tried
        result = "\n".join([f"{tally.held} of {tally.tried} held", tally.measured, *tally.failures])
        print(f"{program.number} {backend} {case}: {result}", flush=True)
    return int(failed)


def _facts(options: argparse.Namespace) -> dict[str, Any]:
    machine = describe(ROOT)
    parts = (machine["cpu"], f"{machine['cores']} cores", f"{machine['memory_gib']:g} GiB", machine["system"])
    return {
        "machine": ", ".join(parts),
        "date": machine["date"],
        "commit": machine["commit"],
        "minutes": options.minutes,
        "seed": options.seed,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    text = "for everything together (default 30); each figure has its share, what one leaves others get"
    parser.add_argument("--minutes", type=positive, default=30.0, metavar="M", help=text)
    numbers = ", ".join(each.number for each in PROGRAMS)
    by_hand = " and ".join(each.number for each in PROGRAMS if each.by_hand)
    text = f"of {numbers}; with commas (default: all but {by_hand})"
    parser.add_argument(
        "--figures", type=_choices([each.number for each in PROGRAMS]), metavar="N", help=text
    )
    text = f"of {', '.join(BACKENDS)} (default: all)"
    backends = _choices(list(BACKENDS))
    parser.add_argument("--backends", type=backends, default=tuple(BACKENDS), metavar="NAME", help=text)
    text = "of the order of cases and of all that is random in them (default 1)"
    parser.add_argument("--seed", type=int, default=1, metavar="S", help=text)
    text = "try this one case of --figures and --backends, and write no page"
    parser.add_argument("--case", default="", metavar="NAME", help=text)
    text = "break deliberately what each figure is about, and see whether it notices"
    parser.add_argument("--damage", action="store_true", help=text)
    text = "the page to write, with its JSON beside it (default docs/reliability.md)"
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE", help=text)
    text = "begin a new page (default: add to the one that is there, which must be of this commit and seed)"
    parser.add_argument("--anew", action="store_true", help=text)
    text = "write no page"
    parser.add_argument("--no_output", dest="output", action="store_const", const=None, help=text)
    return parser


def _choices(known: Sequence[str]) -> Any:
    def choose(text: str) -> tuple[str, ...]:
        chosen = tuple(text.split(","))
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r}: choose from {', '.join(known)}")
        return chosen

    return choose


def _end_processes() -> None:
    """Kills what the marker of tests/processes.py shows to be of this process; contexts have left nothing,
    unless one of them was interrupted while it began."""
    own = f"{MARKER}={os.getpid()}-"
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if any(each.startswith(own) for each in environ_of(pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
