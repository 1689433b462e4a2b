"""Options as fields of tables: what the parser and the configuration have of a field."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from base.command_line import OptionParser, Pair, path_name, positive_int, probability
from base.errors import InputError
from base.options import LAUNCH, RANK, add_options, flag, option, options_in, taken


@dataclass(frozen=True)
class Inner:
    share: float = option("a share", probability, default=0.1, staged=True)
    form: str = option("a form", choices=("plain", "round"), default="plain", unset=True)


@dataclass(frozen=True)
class Outer:
    folder: str
    size: int | None = option("a size", positive_int, "N", scope=LAUNCH, flags=("--length",))
    file: str | None = option("a file", path_name, name="path", scope=RANK)
    loud: bool = flag("say more")
    inner: Inner = field(default_factory=Inner)
    found: int = 3


TABLE = options_in(Outer)
NAMES = " ".join(TABLE)


def parse(*words, table=TABLE, changes=None):
    parser = OptionParser(allow_abbrev=False)
    add_options(parser.add_argument, table, NAMES, changes)
    return parser.parse_args(words)


def test_a_configuration_has_the_options_and_what_is_derived():
    assert NAMES == "size path loud share form"
    assert taken(Outer, parse(), folder="x") == Outer("x")
    given = parse("--length", "4", "--path", "p", "--loud", "--share", "0.5", "--form", "round")
    expected = Outer("x", 4, "p", True, Inner(0.5, "round"), 3)
    assert taken(Outer, given, folder="x") == expected
    assert taken(Outer, given, folder="x", size=None, found=5).size is None


def test_what_is_left_out_can_be_known_and_becomes_the_default():
    assert parse().form is None and parse().share == 0.1
    assert taken(Inner, parse()) == Inner()
    assert taken(Inner, parse(changes={"share": {"default": None}})) == Inner(0.1)


def test_scope_and_paths():
    assert [each.scope for each in TABLE.values()] == [LAUNCH, RANK, "run", "run", "run"]
    assert [name for name, each in TABLE.items() if each.is_path] == ["path"]


def test_pairs_for_what_may_differ_between_stages():
    table = {name: each.in_pairs() for name, each in TABLE.items()}
    assert parse("--share", "0.1,1", table=table).share == Pair(0.1, 1.0)
    for words, where in ((("--size", "1,2"), table), (("--share", "0.1,1"), TABLE)):
        with pytest.raises(InputError, match=f"argument .*{words[0]}"):
            parse(*words, table=where)


def test_the_help_says_the_default_once(capsys):
    changes = {"share": {"default": 5e-5, "help": "another"}, "form": {"help": "as before (default: plain)"}}
    for given, expected in (
        (None, ("a share (default: 0.1)", "a form (default: plain)", "a size\n", "say more\n")),
        (changes, ("another (default: 5e-5)", "as before (default: plain)\n")),
    ):
        with pytest.raises(SystemExit):
            parse("--help", changes=given)
        shown = capsys.readouterr().out + "\n"
        assert all(each in shown for each in expected), shown
