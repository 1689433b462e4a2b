#!/usr/bin/env python3
"""Tables of finished runs: machines, exchange and precision, scaling, phases, scores over seeds.

    python results.py runs/own runs/squad               # each table that these runs have rows for
    python results.py runs/* --table scaling --markdown
    python results.py --compare runs/ours runs/other    # two models, each with --seeds
    python results.py runs/one runs/other --html runs.html

A run is the folder of its checkpoints, or one of --seeds or --search with many. docs/results.md is the guide.
It needs neither MXNet nor a launcher.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any, Sequence

from base.command_line import ScriptParser, code_of, path_name
from base.errors import InputError
from base.files import replacing
from base.options import add_options, flag, option, options_in, taken
from base.tables import Table, markdown, terminal
from training.results.members import has_plan
from training.results.summary import (
    Members,
    compared,
    comparison_table,
    members_json,
    members_tables,
    read_members,
)
from training.results.tables import TABLES, find_runs, tables_of


@dataclass(frozen=True)
class Options:
    """One command. `tables`: of TABLES, None for all that have rows."""

    runs: tuple[str, ...]
    tables: tuple[str, ...] | None
    partial: bool = flag("show folders without results as dashes; else they are an error")
    compare: bool = flag(
        "compare folders of --seeds, each with one model. Rule of thumb: the same 5 seeds for each"
    )
    score: str | None = option(
        "compare by this score (default: the one that decides for the task)", metavar="NAME"
    )
    markdown: bool = flag("print Markdown")
    json: bool = flag("print JSON: every value, null where there is none")
    html: str | None = option(
        "also write a page: the tables, the runs' metrics laid over each other, scores over seeds",
        path_name,
        "FILE",
    )


def parse_options(argv: Sequence[str] | None = None) -> Options:
    """The options, checked by themselves. Raises InputError."""
    parser = ScriptParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=path_name, metavar="RUN", help="folders of runs")
    parser.add_argument(
        "--table",
        metavar="NAME,...",
        help=f"these tables alone, in this order: {', '.join(TABLES)} (default: those that have rows; that "
        "of single runs where one has not finished)",
    )
    add_options(parser.add_argument, options_in(Options), "partial compare score markdown json html")
    given = parser.parse_args(argv)
    if given.markdown and given.json:
        raise InputError("--markdown and --json exclude each other")
    if given.compare and len(given.runs) < 2:
        raise InputError("--compare needs two folders or more")
    if given.compare and (given.table or given.partial):
        raise InputError("--compare has one table, of finished runs; leave --table and --partial out")
    if given.score and not given.compare:
        raise InputError("--score is for --compare")
    tables = tuple(name.strip() for name in given.table.split(",")) if given.table is not None else None
    unknown = [name for name in tables or () if name not in TABLES]
    if unknown:
        raise InputError(f"--table {unknown[0]}: there are {', '.join(TABLES)}")
    return taken(Options, given, runs=tuple(given.runs), tables=tables)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_options(argv)
    content, tables, members, folders = _comparison(options) if options.compare else _tables(options)
    if options.html is not None:
        from training.results.page import page_of  # what reads metrics and draws, for this option alone

        text = page_of(tables, folders, members, options.score)
        try:
            with replacing(options.html) as file:
                file.write(text.encode())
        except OSError as error:
            raise InputError(f"--html {options.html}: cannot be written: {error.strerror}") from error
    if options.json:
        print(json.dumps(content, indent=1, allow_nan=False))
    else:
        show = markdown if options.markdown else terminal
        print("\n\n".join(show(each).rstrip() for each in tables))
    return 0


# JSON, tables, folders of several runs, and those of single runs.
_Found = tuple[dict[str, Any], list[Table], list[Members], list[str]]


def _tables(options: Options) -> _Found:
    runs = find_runs(options.runs, options.partial)
    found = tables_of(runs, options.tables)
    several = [] if options.tables else [read_members(folder) for folder in options.runs if has_plan(folder)]
    if not found:
        raise InputError(f"--table {','.join(options.tables or ())}: none of these runs has a row in it")
    content = {
        "runs": [{"folder": each.folder, **(asdict(each.result) if each.result else {})} for each in runs],
        "tables": {each.kind: each.json() for each in found},
        "members": [members_json(each) for each in several],
    }
    of_members = [table for each in several for table in members_tables(each)]
    tables = [*of_members, *(values.table() for values in found)]
    return content, tables, several, [each.folder for each in runs]


def _comparison(options: Options) -> _Found:
    members = [read_members(folder) for folder in options.runs]
    verdicts = compared(members, options.score)
    content = {
        "score": options.score or members[0].main_score,
        "members": [members_json(each) for each in members],
        "verdicts": [each._asdict() for each in verdicts],
    }
    return content, [comparison_table(members, options.score)], members, []


if __name__ == "__main__":
    try:
        sys.exit(code_of(main))
    except InputError as error:
        print(f"results.py: {error}", file=sys.stderr)
        sys.exit(2)
