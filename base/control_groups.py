"""Limits of the control groups that this process is in, version 1 or 2. Linux; standard library only."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

PROC, MOUNT = Path("/proc"), Path("/sys/fs/cgroup")
Reading = Callable[[Path], "float | None"]  # a group's folder -> its limit, None without one


def tightest(
    controller: str, read_v2: Reading, read_v1: Reading, proc: Path = PROC, mount: Path = MOUNT
) -> float | None:
    """The least limit of this process's group and of the groups around it; None without any.

    Args:
        controller: of version 1, such as "cpu".
    """
    try:
        lines = (proc / "self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for place in (mount, mount / "unified"):
                found.extend(_limits(place, path, read_v2))
        elif controller in controllers.split(","):
            for place in (mount / controllers, mount / controller):
                found.extend(_limits(place, path, read_v1))
    return min(found, default=None)


def read_text(path: Path) -> str:
    """A file's text without the space around it; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _limits(mount: Path, path: str, read: Reading) -> list[float]:
    # Inside a container the group's own directory may be the mount itself, while the path still counts from
    # the host: every ancestor is tried down to the mount.
    parts = [part for part in path.split("/") if part not in ("", "..")]
    found = (read(mount.joinpath(*parts[:length])) for length in range(len(parts), -1, -1))
    return [limit for limit in found if limit is not None]
