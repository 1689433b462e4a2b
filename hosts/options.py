"""Options of a command as the fields of a frozen dataclass: default, range and help stand together. Standard
library only."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any, Callable, Mapping


def option(
    text: str,
    metavar: str = "",
    default: Any = None,
    convert: Callable[[str], Any] | None = None,
    group: str = "",
    **more: Any,
) -> Any:
    """A field that is the option of its name.

    Args:
        text: its help; a default number is shown behind it.
        metavar: empty for a flag, and for one that has `choices`.
        convert: reads its value; None: text that is not empty.
        group: of the parser's help.
        more: other keywords of argparse's. `flags`: its names, instead of its field's.
    """
    if default is False:
        more["action"] = "store_true"
    elif isinstance(default, (int, float)):
        text += f" (default {default:g})"
    # argparse appends to a list's copy.
    keywords = {"help": text, "default": list(default) if default == () else default, **more}
    keywords.update({"metavar": metavar} if metavar else {}, **({"type": convert} if convert else {}))
    return field(default=default, metadata={"group": group, "keywords": keywords})


def add_options(cls: type, groups: Mapping[str, Any]) -> None:
    """Adds the fields of `cls` that are options to a parser's groups, by their names."""
    for each in fields(cls):
        if each.metadata:
            keywords = dict(each.metadata["keywords"])
            flags = keywords.pop("flags", [f"--{each.name}"])
            groups[each.metadata["group"]].add_argument(*flags, **keywords)
