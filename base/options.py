"""Options of a command line as fields of frozen dataclasses, the tables: each is written once, with its
default, range and help. Parsers and configurations are derived from them. Standard library only.

    @dataclass(frozen=True)
    class BatchConfig:
        accumulate: int = option("micro-batches per step", positive_int, default=1)
        use_avg_len: bool = flag("batch_size counts tokens")

    TABLE = options_in(BatchConfig)
    add_options(parser.add_argument_group("batch").add_argument, TABLE, "accumulate use_avg_len")
    config = taken(BatchConfig, parser.parse_args())
"""

from __future__ import annotations

import argparse
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from typing import Any, Callable, Mapping, TypeVar

from base.command_line import pair_of, path_name, path_names, seconds

# What a value belongs to: RUN, results depend on it; LAUNCH, another one may be given when a run is resumed;
# RANK, each rank may have its own.
RUN, LAUNCH, RANK = "run", "launch", "rank"

Table = Mapping[str, "Option"]
T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """An option of a command line.

    Attributes:
        words: arguments of `add_argument`; `flags`: other names.
        name: without dashes; "" in a field: the field's own.
        scope: RUN, LAUNCH or RANK.
        staged: whether pretraining takes a pair of values, for stage 1 and stage 2.
    """

    words: Mapping[str, Any]
    name: str = ""
    scope: str = RUN
    staged: bool = False

    @property
    def is_path(self) -> bool:
        """Whether it names files or folders, of which the content counts."""
        return self.words.get("type") in (path_name, path_names)

    def in_pairs(self) -> Option:
        """The same, which takes a pair where it is `staged`."""
        if not self.staged:
            return self
        return replace(self, words={**self.words, "type": pair_of(self.words["type"])})

    def add(self, add: Callable[..., Any], **changes: Any) -> None:
        """Adds it to a parser or group, by its `add_argument`. `changes`: words that differ here."""
        if "help" in changes:
            changes["help"] = _with_default(
                changes["help"], changes.get("default", self.words.get("default"))
            )
        words = {**self.words, **changes}
        add(f"--{self.name}", *words.pop("flags", ()), **words)


def option(
    help: str,
    type: Callable[[str], Any] | None = None,
    metavar: str | None = None,
    default: Any = None,
    **words: Any,
) -> Any:
    """A field of a table. The default is added to a `help` that does not say it. `words`: further arguments
    of `add_argument`, and `name`, `scope` and `staged` of `Option`. With `unset` the parser gives None where
    the option is left out, to know which ones are given; `taken` has the default then."""
    of_option = {key: words.pop(key) for key in ("name", "scope", "staged") if key in words}
    parsed = None if words.pop("unset", False) else default
    text = _with_default(help, default)
    given = {"help": text, "type": type, "metavar": metavar, "default": parsed, **words}
    given = {key: value for key, value in given.items() if value is not None}
    return field(default=default, metadata={"option": Option(words=given, **of_option)})


def in_seconds(help: str, default: float, **words: Any) -> Any:
    """A field of a table, as `option`, for a duration."""
    return option(help, seconds, "SECONDS", default, **words)


def _with_default(help: str, default: Any) -> str:
    if default in (None, ()) or "default" in help:
        return help
    text = f"{default:g}".replace("e-0", "e-") if isinstance(default, (int, float)) else default
    return f"{help} (default: {text})"


def flag(help: str, scope: str = RUN, **words: Any) -> Any:
    """A field of a table that is true where its option is given."""
    given = {"help": help, "action": "store_true", **words}
    return field(default=False, metadata={"option": Option(given, scope=scope)})


def options_in(*kinds: type) -> dict[str, Option]:
    """The options of tables, and of tables in their fields, by name."""
    found: dict[str, Option] = {}
    for each in (each for kind in kinds for each in fields(kind)):
        if "option" in each.metadata:
            made = each.metadata["option"]
            name = made.name or each.name
            found[name] = replace(made, name=name)
        elif _is_table(each):
            found.update(options_in(each.default_factory))  # type: ignore[arg-type]
    return found


def _is_table(each: Field[Any]) -> bool:
    return isinstance(each.default_factory, type) and is_dataclass(each.default_factory)


def add_options(
    add: Callable[..., Any], table: Table, names: str, changes: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Adds the options of these names, with spaces between them. `changes`: by name, as for `Option.add`."""
    for name in names.split():
        table[name].add(add, **(changes or {}).get(name, {}))


def taken(kind: type[T], options: argparse.Namespace, **derived: Any) -> T:
    """The configuration that parsed options make up, with tables in its fields: a field has the value of its
    option, or else of the attribute of its name. What is not there, or None, keeps the default."""
    for each in fields(kind):  # type: ignore[arg-type]
        made = each.metadata.get("option")
        if each.name in derived:
            continue
        if _is_table(each):
            derived[each.name] = taken(each.default_factory, options)  # type: ignore[arg-type]
            continue
        value = getattr(options, made.name or each.name if made else each.name, None)
        if value is not None or (each.default is MISSING and each.default_factory is MISSING):
            derived[each.name] = value
    return kind(**derived)
