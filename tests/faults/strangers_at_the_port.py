"""Figure 5, of the network: strangers at the heartbeat's port have no effect (tests/faults/strangers.py).

They attack a run of two ranks, of which one comes late, so that rank 0 listens until they are done; and a hub
alone, whose token they have, and whose descriptors and memory are counted.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from typing import Iterator

from tests.faults.figure import Attempt, Damage, Program, Setting, Tally
from tests.faults.jobs import Job, differences, named, parsed, whole
from tests.processes import wait_for_file

MESSAGES = 2500
DAMAGES = (
    "believes everyone",
    "keeps all strangers",
    "stays open",
    "parses first",
)  # of tests/faults/strangers.py
MEETING = """
import time
from pathlib import Path
from comm.watch import heartbeat
folder = Path({folder!r})
listen, connect = heartbeat.Hub.__init__, heartbeat.Link.__init__
def listen_and_say(self, *given, **named):
    listen(self, *given, **named)
    (folder / "port").write_text(str(self.address.places[0][1]) + "\\n")
def wait_and_connect(self, *given, **named):
    end = time.monotonic() + 60
    while not (folder / "go").exists() and time.monotonic() < end:
        time.sleep(0.02)
    connect(self, *given, **named)
heartbeat.Hub.__init__, heartbeat.Link.__init__ = listen_and_say, wait_and_connect
if {damage!r}:
    from tests.faults.strangers import DAMAGES
    DAMAGES[{damage!r}]()
"""


def cases(setting: Setting) -> Iterator[str]:
    """Endless: attacks on a run, and on a hub alone, with other messages each."""
    draw = random.Random(setting.seed)
    while True:
        for at in ("run", "hub"):
            yield named(at=at, messages=MESSAGES, seed=draw.randrange(10**6))


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case: messages, floods, connections that stay."""
    from tests.faults import strangers

    damage = next((name for name in DAMAGES if setting.damage.endswith(name)), "")

    def at_a_run(messages: int, seed: int) -> Tally:
        expected = whole(setting)
        folder, directory = setting.work / "meeting", setting.work / "run"
        for each in (folder, directory):
            shutil.rmtree(each, ignore_errors=True)
        folder.mkdir()
        job = Job(setting, 1, MEETING.format(folder=str(folder), damage=damage))
        with job.start(directory) as run:
            wait_for_file(folder / "port", text="\n", run=run)
            port = int((folder / "port").read_text(encoding="ascii"))
            delivered = strangers.bother(port, messages, seed, (folder / "go").touch)
            result = run.wait()
        effect = differences(directory, expected) if result.returncode == 0 else result.describe(1500)
        if not effect and delivered < 0.9 * messages:
            effect = f"{messages - delivered} messages were not delivered"
        return Tally(delivered, delivered - bool(effect), (effect,) if effect else ())

    def at_a_hub(messages: int, seed: int) -> Tally:
        outcome = strangers.attack(messages, seed, damage=damage)
        return Tally(outcome.messages, outcome.messages - bool(outcome.effects), outcome.effects)

    def attempt(case: str) -> Tally:
        parts = parsed(case)
        attack = at_a_run if parts["at"] == "run" else at_a_hub
        return attack(int(parts["messages"]), int(parts["seed"]))

    yield attempt


PROGRAM = Program(
    "5b",
    "messages, floods, idle connections of strangers at the heartbeat's port",
    "10,000: no effect on the run",
    weight=0.5,
    seconds=20,
    cases=cases,
    opened=opened,
    damages={
        **{f"it {name}": Damage(named(at="hub", messages=600, seed=1), ".") for name in DAMAGES},
        "rank 0 parses first": Damage(named(at="run", messages=600, seed=1), "exited with|lost|ended"),
    },
    note="a run's parameters, states and metrics are compared with the undisturbed run's, to the bit",
)
