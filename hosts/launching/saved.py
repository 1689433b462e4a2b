"""Progress of a run, read from the names in its --ckpt_dir. Standard library only.

A checkpoint is complete when its manifest, `0002000.json`, is there (training/checkpoint.py). The runs of
--seeds have a folder each below --ckpt_dir.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
from dataclasses import dataclass, field
from typing import Mapping

from base.errors import InputError
from base.json_files import read_json_object

_MANIFEST = re.compile(r"(\d{7,18})\.json")
_METRICS = "metrics.jsonl"
_MOST_MANIFEST = 16 << 20  # bytes; options are kilobytes
_END = 1 << 16  # bytes of a metrics file that are looked at; a line has about 600


@dataclass(frozen=True)
class Saved:
    """Complete checkpoints of a moment. `steps`: the newest step of each folder that has any, those aside
    that were saved because a run failed. `step`: that of the checkpoint that was saved last, for whatever
    reason, 0 without one. `time`: when that was, in seconds since 1970."""

    steps: Mapping[str, int] = field(default_factory=dict)
    step: int = 0
    time: float = 0.0

    def is_later_than(self, other: Saved) -> bool:
        """Whether a folder has a later checkpoint now than it had in `other`."""
        return any(step > other.steps.get(folder, -1) for folder, step in self.steps.items())


def look(ckpt_dir: str) -> Saved:
    """Reads the names of checkpoints in a folder and in those directly below it, and the newest manifests. A
    folder that does not exist has none."""
    found: dict[str, list[int]] = {}
    for path in _files(ckpt_dir, "*.json"):
        folder, name = os.path.split(path)
        match = _MANIFEST.fullmatch(name)
        if match:
            found.setdefault(folder, []).append(int(match[1]))
    last, steps = (0.0, 0), {}
    for folder, each in found.items():
        paths = {step: os.path.join(folder, f"{step:07d}.json") for step in sorted(each, reverse=True)}
        newest = next(iter(paths))
        with contextlib.suppress(OSError):
            last = max(last, (os.stat(paths[newest]).st_mtime, newest))
        # A run that takes one step between two failures would otherwise be started for ever.
        steps[folder] = -1
        for step, path in paths.items():
            rescued = None
            with contextlib.suppress(InputError, OSError):
                rescued = read_json_object(path, _MOST_MANIFEST).get("rescued")
            if rescued is not True:
                steps[folder] = step
                break
    return Saved(steps, last[1], last[0])


def logged_step(ckpt_dir: str) -> int:
    """The last step in the metrics that were written last, 0 without one."""
    files = filter(os.path.isfile, _files(ckpt_dir, _METRICS))  # a pipe would keep its reader waiting
    lines: list[bytes] = []
    with contextlib.suppress(OSError, ValueError), open(max(files, key=os.path.getmtime), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _END))
        lines = file.read(_END).splitlines()
    for line in reversed(lines):
        with contextlib.suppress(ValueError, RecursionError):
            values = json.loads(line)
            step = values.get("step") if isinstance(values, dict) else None
            if isinstance(step, int):
                return step
    return 0


def _files(ckpt_dir: str, pattern: str) -> list[str]:
    """Paths in a folder, and in those directly below it."""
    here = glob.escape(ckpt_dir)
    return [path for each in ("", "*") for path in glob.glob(os.path.join(here, each, pattern))]
