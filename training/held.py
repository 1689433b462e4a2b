"""A run's directory, held for this run alone."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Iterator

from base.claims import PATIENCE, Claim, HeldError
from base.errors import InputError
from comm.base import Communicator, abort
from training.exchange import broadcast_json

LOCK_FILE = "run.lock"
_POLL = 1.0  # seconds


@contextlib.contextmanager
def held(ckpt_dir: str, communicator: Communicator) -> Iterator[None]:
    """Holds --ckpt_dir inside the block; every rank calls it, rank 0 holds. The directory is created.

    Where the holder is on another host and may have gone, it waits up to a minute for a sign of life.

    Raises:
        InputError: on every rank, another run has it, which is named; or it cannot be written to.
    """
    claim: Claim | None = None
    if communicator.rank == 0:
        claim = Claim(os.path.join(ckpt_dir, LOCK_FILE), lambda other: _lost(ckpt_dir, other))
    try:
        waited = False
        while True:
            taken, error = broadcast_json(_attempt(claim, ckpt_dir), communicator)
            if error:
                raise InputError(error)
            if taken:
                break
            if claim is not None and not waited:
                waited = True
                print(
                    f"--ckpt_dir {ckpt_dir} was held by {claim.watched}; waiting {PATIENCE:g} s at most for "
                    "a sign of life",
                    file=sys.stderr,
                    flush=True,
                )
            time.sleep(_POLL)
        yield
    finally:
        if claim is not None:
            claim.release()


def _attempt(claim: Claim | None, ckpt_dir: str) -> tuple[bool, str | None]:
    """Whether rank 0 has the directory now; or an error's message."""
    if claim is None:
        return False, None
    try:
        os.makedirs(ckpt_dir, exist_ok=True)
        return claim.attempt(), None
    except HeldError as error:
        return False, f"--ckpt_dir {ckpt_dir} is held by {error}; wait for its end, or name another directory"
    except OSError as error:
        return False, f"--ckpt_dir {ckpt_dir}: {LOCK_FILE} cannot be written there: {error.strerror or error}"


def _lost(ckpt_dir: str, other: str) -> None:
    """Ends this process: two runs in one directory would write over each other."""
    print(
        f"error: --ckpt_dir {ckpt_dir} is held by {other}, after this process gave no sign of life for "
        f"{PATIENCE:g} s",
        file=sys.stderr,
        flush=True,
    )
    abort(1)
