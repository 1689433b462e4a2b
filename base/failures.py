"""Notes that failing ranks leave for their launcher, which decides by them about a restart: a small file of
JSON for each rank, whole or not there. And the place, in a host's memory, of a checkpoint that the disk did
not take. Standard library only.

hosts/launch.py names the folder in RUN_FAILURES; without it nothing is written. Where a process ends without
a note, killed by a signal for example, its exit code decides.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket
import stat
from dataclasses import asdict, dataclass, replace

from base import notify
from base.errors import InputError, one_line
from base.files import replacing
from base.json_files import read_json_object
from base.launchers import launched_rank

FOLDER = "RUN_FAILURES"
BAD_OPTION = "bad option"  # the same again with another start
FAILED = "failed"  # perhaps the same again: a defect, gradients that stay non-finite
DISK = "disk"  # another start may find room, or the file server
MISSING = "missing host"  # another rank did not answer, or had ended
PASSING = "passing"  # another failure of the exchange between ranks
MAY_PASS = (DISK, MISSING, PASSING)
KINDS = (BAD_OPTION, FAILED, *MAY_PASS)
MEMORY = "/dev/shm"
_MOST_BYTES = 1 << 16
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)
_NETWORK = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT)


@dataclass(frozen=True)
class Note:
    """A failure of a rank. `host`: its own name there. `code`: its exit code. `kind`: one of those above.
    `message`: one line. `missing`: the rank that this one has missed."""

    rank: int
    host: str
    code: int
    kind: str
    message: str
    missing: int | None = None


def kind_of(error: BaseException) -> str:
    """The kind of a failure by the error of the system that is its cause, if one is; else FAILED."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            if cause.errno in _DISK:
                return DISK
            if isinstance(cause, (ConnectionError, TimeoutError)) or cause.errno in _NETWORK:
                return PASSING
        cause = cause.__cause__ or cause.__context__
    return FAILED


def leave(code: int, kind: str, message: str, missing: int | None = None) -> None:
    """Leaves this rank's note where a launcher wants one, and tells the user's command; what cannot be
    written is left out."""
    notify.tell(notify.FAILURE, message, code)
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    note = Note(launched_rank(os.environ), socket.gethostname(), code, kind, one_line(message), missing)
    with contextlib.suppress(OSError):  # a full disk may be why it fails
        os.makedirs(folder, exist_ok=True)
        with replacing(os.path.join(folder, f"rank.{note.rank}.json")) as file:
            file.write(json.dumps(asdict(note)).encode())


def read(folder: str) -> dict[int, Note]:
    """The notes in a folder by rank, those that were left first before others. What is none is left out:
    anybody who can write there may have put it there."""
    notes = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError, InputError, TypeError):
                note = Note(**read_json_object(entry.path, _MOST_BYTES))
                numbers = (note.rank, note.code, 0 if note.missing is None else note.missing)
                is_whole = note.kind in KINDS and all(
                    isinstance(each, str) for each in (note.host, note.message)
                )
                if is_whole and all(isinstance(each, int) and each >= 0 for each in numbers):
                    note = replace(note, message=one_line(note.message))
                    notes.append((entry.stat().st_mtime_ns, note))
    return {note.rank: note for _, note in sorted(notes, key=lambda each: each[0])}


def memory_of(ckpt_dir: str) -> str:
    """The folder in this host's memory for a checkpoint that the disk did not take."""
    name = hashlib.sha256(os.path.realpath(ckpt_dir).encode()).hexdigest()[:16]
    return os.path.join(MEMORY, f"checkpoint-{os.geteuid()}-{name}")


def kept_in_memory(ckpt_dir: str) -> str | None:
    """That folder where it is there, and not somebody else's, who may write there what they like."""
    folder = memory_of(ckpt_dir)
    try:
        there = os.lstat(folder)
    except OSError:
        return None
    own = stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid() and not there.st_mode & 0o077
    return folder if own else None
