"""YAML files as nodes: errors can name fields and lines, and tags are never obeyed. PyYAML is imported where
a file is read."""

from __future__ import annotations

from typing import Any

from base.errors import InputError
from base.json_files import read_regular


def compose(path: str, source: str, most_bytes: int) -> Any:
    """The node of the mapping that a file is; None where it is something else.

    Args:
        source: what messages call the file.

    Raises:
        InputError: it cannot be read, or is no YAML.
    """
    try:
        import yaml
    except ImportError as error:
        raise InputError(f"{source}: needs PyYAML; run `make setup`") from error
    content = read_regular(path, most_bytes, source)
    try:
        root = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be parsed"
        hint = "quote a value that begins with * & ! % @ or a bracket"
        raise InputError(f"{source}{at}: no YAML: {problem}; {hint}") from None
    except RecursionError:
        raise InputError(f"{source}: nested too deeply") from None
    return root if root is not None and isinstance(root, yaml.MappingNode) else None


def scalar(node: Any) -> Any:
    """The null, truth value, number or text of a scalar's node as YAML 1.1 reads it.

    Raises:
        ValueError: it is none of them: a date, or what a tag asks for.
    """
    import yaml

    if node.tag.rpartition(":")[2] not in ("null", "bool", "int", "float", "str"):
        raise ValueError(node.tag)
    try:
        return yaml.SafeLoader("").construct_document(node)
    except (KeyError, IndexError) as error:  # of PyYAML, for !!bool maybe and !!int ""
        raise ValueError(node.tag) from error
