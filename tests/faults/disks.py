"""Disks that are small, full, read-only or limited, as contexts; a trouble gives the system's word for it."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Iterator


@contextlib.contextmanager
def limited(limit: int) -> Iterator[str]:
    """No file may be larger; Python ignores the signal that comes with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield "File too large"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def full(directory: Path, pages: int) -> Iterator[str]:
    """All but so many pages of a folder's file system are taken."""
    ballast = directory / "ballast"
    status = os.statvfs(directory)
    ballast.write_bytes(bytes((status.f_bavail - pages) * status.f_frsize))
    try:
        yield "No space left on device"
    finally:
        ballast.unlink()


@contextlib.contextmanager
def read_only(directory: Path) -> Iterator[str]:
    """The file system above a folder has become read-only."""
    place = str(directory.parent)
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)
    try:
        yield "Read-only file system"
    finally:
        subprocess.run(["mount", "-o", "remount,rw", place], check=True)


@contextlib.contextmanager
def small_disk(place: Path, size: str = "1M") -> Iterator[Path]:
    """A file system of its own at a new folder, as long as the block lasts. Needs root."""
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def can_mount(work: Path) -> bool:
    """Whether this user may mount a disk in a folder."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    try:
        with small_disk(work / "trial"):
            return True
    except subprocess.CalledProcessError:
        return False
    finally:
        shutil.rmtree(work / "trial", ignore_errors=True)


def fill(path: Path) -> None:
    """Fills the disk of a file."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
