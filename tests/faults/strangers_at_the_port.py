"""Figure 5, of the network: strangers at the heartbeat's port have no effect (tests/faults/strangers.py).

They attack a run of two ranks, of which one comes late, so that rank 0 listens until they are done; and a hub
alone, whose token they have, and whose descriptors and memory are counted.
"""

from __future__ import annotations

from tests.faults import strangers
from tests.faults.figure import Damage, Parts, Program, Setting, Tally, endless, named
from tests.faults.jobs import Job, differences, whole
from tests.processes import wait_for_file

MESSAGES = 2500
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
"""


def attempt(setting: Setting, parts: Parts) -> Tally:
    """Messages, floods, connections that stay."""
    messages, seed = int(parts["messages"]), int(parts["seed"])
    if parts["at"] == "hub":
        damage = setting.damage[len("it ") :]
        outcome = strangers.attack(messages, seed, damage=damage)
        return Tally.of("; ".join(outcome.effects), tried=outcome.messages)
    expected, folder, directory = whole(setting), setting.folder("meeting"), setting.folder("run")
    job = Job(setting, 1, MEETING.format(folder=str(folder)))
    with job.start(job.words(directory)) as run:
        wait_for_file(folder / "port", text="\n", run=run)
        port = int((folder / "port").read_text(encoding="ascii"))
        delivered = strangers.bother(port, messages, seed, (folder / "go").touch)
        result = run.wait()
    effect = differences(directory, expected) if result.returncode == 0 else result.describe(1500)
    if not effect and delivered < 0.9 * messages:
        effect = f"{messages - delivered} messages were not delivered"
    return Tally.of(effect, tried=delivered)


PROGRAM = Program(
    "5b",
    "messages, floods, idle connections of strangers at the heartbeat's port",
    "10,000: no effect on the run",
    weight=0.5,
    seconds=20,
    cases=endless({"at": "run", "messages": MESSAGES}, {"at": "hub", "messages": MESSAGES}),
    attempt=attempt,
    damages={
        **{f"it {name}": Damage(named(at="hub", messages=600, seed=1), ".") for name in strangers.DAMAGES},
        "rank 0 parses first": Damage(
            named(at="run", messages=600, seed=1),
            "exited with|lost|ended",
            "from tests.faults.strangers import DAMAGES\nDAMAGES['parses first']()",
        ),
    },
    note="a run's parameters, states and metrics are compared with the undisturbed run's, to the bit",
)
