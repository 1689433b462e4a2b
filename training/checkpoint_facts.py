"""The entries of a checkpoint's manifest, checked: a checksum says that nothing was changed by accident, not
that a run can go on with it. Standard library only.

Entries that are not there are not missed: older versions wrote fewer, and who needs one says so.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from base.command_line import MOST
from base.errors import InputError
from bert.configuration import recorded_config

_MOST_BYTES = 1 << 50  # of a file
_MOST_TOKENS = 1 << 24  # of a vocabulary
_MOST_SEED = 1 << 64
_MOST_POSITION = 1 << 52  # a million epochs: an epoch's number stands above 32 bits (PretrainingBatches)
_MOST_SECONDS = 1e12
_HEXADECIMAL = set("0123456789abcdef")

Check = Callable[[Any], bool]


def check_facts(manifest: Mapping[str, Any], source: str, files: Sequence[str]) -> None:
    """Checks types and ranges of a manifest's entries.

    Args:
        source: the manifest, for the beginning of messages.
        files: extensions of the files that it must describe.

    Raises:
        InputError: naming the entry.
    """
    for name, (check, wanted) in _ENTRIES.items():
        if name in manifest and not check(manifest[name]):
            raise InputError(f"{source} is damaged: {name} is not {wanted}")
    described = manifest.get("files")
    if not isinstance(described, dict) or set(described) != set(files):
        raise InputError(f"{source} is damaged: it does not describe the files {', '.join(files)}")
    for name, entry in described.items():
        size, checksum = (entry.get("size"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        if not (_whole(0, _MOST_BYTES)(size) and _is_checksum(checksum)):
            raise InputError(f"{source} is damaged: it describes {name} by no size and sha256")
    if "begun" in manifest and manifest["begun"] > manifest["step"]:
        raise InputError(f"{source} is damaged: its schedule begins after its step")
    if manifest.get("bert") is not None:
        recorded_config(manifest, source)


def _whole(least: int, most: int) -> Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _number(least: float, most: float) -> Check:
    # A NaN is in no range; a whole number of any size is compared as it is.
    return lambda value: (
        isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
    )


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _is_checksum(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= _HEXADECIMAL


def _options(value: Any) -> bool:
    """Whether it holds options by name; of their values those are checked with which a run computes."""
    if not isinstance(value, dict):
        return False
    whole = _whole(1, MOST)
    # Fine-tuning may have no interval: it saves at the end alone.
    interval = value.get("ckpt_interval")
    return (interval is None or whole(interval)) and ("accumulate" not in value or whole(value["accumulate"]))


def _is(kind: type) -> Check:
    return lambda value: isinstance(value, kind)


# Name: what it must be, in code and in words.
_ENTRIES: dict[str, tuple[Check, str]] = {
    "step": (_whole(0, MOST), "a whole number of steps"),
    "versions": (_is(dict), "an object"),
    "model": (_is(str), "a name"),
    "bert": (_or_none(_is(dict)), "an object"),
    "vocab_size": (_whole(1, _MOST_TOKENS), "a number of tokens"),
    "vocab_sha256": (_or_none(_is_checksum), "a sha256"),
    "vocabulary": (_or_none(_is(dict)), "an object"),
    "stage": (_or_none(_whole(1, 2)), "1, 2 or null"),
    "begun": (_whole(0, MOST), "a whole number of steps"),
    "num_steps": (_or_none(_whole(1, MOST)), "a whole number of steps"),
    "ended": (_is(bool), "true or false"),
    "world_size": (_whole(1, MOST), "a number of processes"),
    "processes": (_whole(1, MOST), "a number of processes"),
    "options": (_options, "an object with options that a run can have"),
    "scaler": (_is(dict), "an object"),
    "skips": (_is(dict), "an object"),
    "seed": (_whole(0, _MOST_SEED), "a seed"),
    "blocks": (
        _whole(0, _MOST_POSITION),
        f"a position in the data, at most 2^{_MOST_POSITION.bit_length() - 1}",
    ),
    "ckpt_interval": (_whole(1, MOST), "a whole number of steps"),
    "training_s": (_number(0, _MOST_SECONDS), "a number of seconds"),
    "wall_s": (_or_none(_number(0, _MOST_SECONDS)), "a number of seconds"),
}
