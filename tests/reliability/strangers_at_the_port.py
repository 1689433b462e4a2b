"""Figure 5, of the network: strangers at the heartbeat's port have no effect on it (tests/strangers.py)."""

from __future__ import annotations

import contextlib
import random
from typing import Iterator

from tests.reliability.figure import ONCE, Attempt, Damage, Program, Setting, Tally
from tests.reliability.jobs import named, parsed

MESSAGES = 2500
DAMAGES = ("believes everyone", "keeps all strangers", "stays open", "parses first")  # of tests/strangers.py


def cases(setting: Setting) -> Iterator[str]:
    """Endless: attacks with other messages each."""
    draw = random.Random(setting.seed)
    while True:
        yield named(messages=MESSAGES, seed=draw.randrange(10**6))


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case: messages, floods and slow connections at a hub of four ranks."""
    from tests import strangers

    def attempt(case: str) -> Tally:
        parts = parsed(case)
        damage = setting.damage.partition(" ")[2] if setting.damage else ""
        outcome = strangers.attack(int(parts["messages"]), int(parts["seed"]), damage=damage)
        held = outcome.messages if not outcome.effects else outcome.messages - 1
        return Tally(outcome.messages, held, outcome.effects)

    yield attempt


PROGRAM = Program(
    "5b",
    "messages, floods and slow connections of strangers at the heartbeat's port",
    "no effect on the run",
    weight=0.5,
    seconds=8,
    backends=(ONCE,),
    cases=cases,
    opened=opened,
    damages={f"it {name}": Damage(named(messages=600, seed=1), ".") for name in DAMAGES},
)
