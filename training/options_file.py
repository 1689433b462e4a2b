"""Options in YAML files: --options_file, and the run.yaml that every run leaves.

A file is a mapping from options, by name, to values. Each value is taken as the text that stands in the file,
which the command line then reads: YAML 1.1 by itself makes a string of 1e-3, a number of 010 and false of no.
Nothing but text is ever made of a file, whatever its tags ask for.

YAML is imported only where a file is read or written; otherwise this module is standard library only.
"""

from __future__ import annotations

import argparse
import difflib
import math
import sys
from typing import Any, Mapping, NamedTuple, Sequence

from base.command_line import ScriptParser, path_name
from base.errors import InputError
from base.files import replacing
from base.options import RANK, Option
from base.yaml_files import compose

OPTION = "--options_file"
OPTIONS_FILE = Option(
    {
        "type": path_name,
        "metavar": "FILE",
        "help": "YAML file of options by their names, such as the run.yaml that every run leaves in "
        "ckpt_dir; the command line wins, and takes an option of the file back by --NAME=null, a flag by "
        "--FLAG=false",
    },
    OPTION[2:],
    RANK,
)
RUN_FILE = "run.yaml"
_LARGEST = 1 << 16  # bytes; all options with long paths take a twentieth of it
_NOTHING = ("", "~", "null", "Null", "NULL")  # YAML's spellings of null: the option is left out
_FLAG = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_PLAIN_TAGS = {
    f"tag:yaml.org,2002:{each}"
    for each in ("null", "bool", "int", "float", "str", "timestamp", "value", "seq")
}


class Entry(NamedTuple):
    """A line of a file: a flag's value is a bool, another option's its text, None where it is left out."""

    line: int
    name: str
    value: str | bool | None


def parse_words(parser: ScriptParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command line, None: this process's, and of its --options_file.

    Raises:
        InputError: as `expand`, and for what the parser does not take.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    options = parser.parse_args(expand(words, parser))
    options.options_file = next(iter(_without_files(words)[0]), None)
    return options


def expand(words: Sequence[str], parser: ScriptParser) -> list[str]:
    """The words of a command line with the options of its --options_file in front, so that its own win.

    --NAME=null takes an option of the file back; --FLAG=true and --FLAG=false set a flag, whatever the file
    or an earlier word says of it.

    Raises:
        InputError: a file that cannot be read, or a key or value in it that the command line does not take;
            file, line, key and the nearest option are named.
    """
    if {"-h", "--help"} & set(words):  # before anything is read
        return list(words)
    paths, rest = _without_files(words)
    if len(paths) > 1:
        raise InputError(f"{OPTION} {paths[1]}: a command line has one such file")
    defaults = vars(parser.parse_args([]))
    flags = {name for name, default in defaults.items() if default is False}
    in_front: list[str] = []
    for entry in read_options(paths[0], defaults) if paths else ():
        if entry.value is None or entry.value is False:
            continue
        text = f"--{entry.name}" if entry.value is True else f"--{entry.name}={entry.value}"
        try:
            parser.parse_args([text])
        except InputError as error:
            reason = str(error).replace(" (--help lists the options)", "")
            raise InputError(f"{OPTION} {paths[0]}, line {entry.line}: {reason}") from None
        in_front.append(text)
    if paths:
        # --NAME=null takes back what the file has of NAME.
        nulls = {f"--{name}=null": f"--{name}" for name in defaults}
        taken = {nulls[word] for word in rest if word in nulls}
        in_front = [word for word in in_front if word.partition("=")[0] not in taken]
        rest = [word for word in rest if word not in nulls]
    return _settle_flags([*in_front, *rest], flags)


def _without_files(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files that a command line names, and its other words."""
    parser = ScriptParser(add_help=False)
    parser.add_argument(OPTION, action="append", default=[])
    given, rest = parser.parse_known_args(words)
    return given.options_file, rest


def read_options(path: str, defaults: Mapping[str, Any]) -> list[Entry]:
    """The entries of a file, in its order; values are not compared with what their options take.

    Raises:
        InputError: no YAML mapping from options to single values or lists of these, an unknown or repeated
            key, or a flag that is neither true nor false.
    """
    root = compose(path, f"{OPTION} {path}", _LARGEST)
    if root is None:
        raise InputError(f"{OPTION} {path}: holds no options; write one a line, such as lr: 1e-3")
    entries: list[Entry] = []
    seen: dict[str, int] = {}
    for key_node, value_node in root.value:
        line = key_node.start_mark.line + 1
        where = f"{OPTION} {path}, line {line}"
        key = str(key_node.value) if key_node.id == "scalar" else f"a {key_node.id}"
        if key == OPTION[2:]:
            raise InputError(f"{where}: {key}: a file of options cannot name another")
        if key not in defaults:
            names = [name for name in defaults if name != OPTION[2:]]
            nearest = difflib.get_close_matches(key.lstrip("-").replace("-", "_"), names, 1)
            hint = f"do you mean {nearest[0]}?" if nearest else "--help lists the options"
            raise InputError(f"{where}: {key!r} is no option; {hint}")
        if key in seen:
            raise InputError(f"{where}: {key} stands in line {seen[key]} already; keep one of them")
        seen[key] = line
        entries.append(Entry(line, key, _value(key, value_node, defaults[key] is False, where)))
    return entries


def write_options(path: str, options: Mapping[str, Any], comments: Sequence[str]) -> None:
    """Writes a file that --options_file reads, whole or not at all. None is written as null.

    Raises:
        InputError: it cannot be written.
        TypeError: a value that no option has.
    """
    shown = ("".join(c if c.isprintable() else ascii(c)[1:-1] for c in each) for each in comments)
    lines = [f"# {each}" for each in shown]
    lines += [f"{name}: {_written(value)}" for name, value in options.items() if name != OPTION[2:]]
    try:
        with replacing(path) as file:
            file.write(("\n".join(lines) + "\n").encode())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def _value(key: str, node: Any, flag: bool, where: str) -> str | bool | None:
    parts = node.value if node.id == "sequence" else [node]
    if any(each.tag not in _PLAIN_TAGS for each in (node, *parts) if each.id != "mapping"):
        raise InputError(f"{where}: {key} has a tag; write the value alone")
    if node.id == "scalar" and node.style is None and node.value in _NOTHING:
        return None
    if flag:
        if node.id != "scalar" or node.style is not None or node.value not in _FLAG:
            shown = repr(node.value) if node.id == "scalar" else f"a {node.id}"
            raise InputError(f"{where}: {key}: {shown} is no value of a flag; use true or false")
        return _FLAG[node.value]
    if not parts or any(each.id != "scalar" for each in parts):
        raise InputError(f"{where}: {key} takes one value, or a list of values for what commas separate")
    if len(parts) > 1 and any(each.style is None and each.value in _NOTHING for each in parts):
        raise InputError(f"{where}: {key} has an empty value in its list")
    return ",".join(each.value for each in parts)


def _settle_flags(words: Sequence[str], flags: set[str]) -> list[str]:
    """The words with every flag plain or gone, the last word about it having decided."""
    settled: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if not (equals and name.startswith("--") and name[2:] in flags):
            settled.append(word)
            continue
        if value not in _FLAG:
            raise InputError(f"{word}: a flag is {name}, {name}=true or {name}=false")
        settled = [each for each in settled if each != name] + ([name] if _FLAG[value] else [])
    return settled


def _written(value: Any) -> str:
    """A value that YAML readers of any version take as it is meant."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        text = repr(value)
        return text if "." in text else text.replace("e", ".0e")  # 1e-05 is a string in YAML 1.1
    if isinstance(value, str):
        import yaml

        return str(yaml.safe_dump(value, default_style='"', width=math.inf)).rstrip("\n")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_written, value))}]"
    raise TypeError(f"{value!r} is no value of an option")
