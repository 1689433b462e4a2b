"""Goodput: something fails every minute in a run under hosts/launch.py, which starts it again each time, on
the same hosts, or with a spare one for a host that is lost. Counted is what the steps that it has taken last
undisturbed, in all of the time from the launcher's start to its end. A failure costs one step at most."""

from __future__ import annotations

import itertools
import random
import signal
import statistics
import time
from typing import Any, Iterator, Sequence

from tests.faults.disks import small_disk
from tests.faults.fail_and_restart import KINDS, LOST, PHASES, Attack, Recovery, kinds, misreported, started
from tests.faults.figure import Damage, Parts, Program, Setting, Tally, named
from tests.faults.jobs import NOT_RESCUED, Job, json_lines
from tests.namespaces import SPARE_ADDRESS, two_hosts

EVERY = 60  # seconds
LEAST = 0.8
# Steps of about 0.1 s, so that a checkpoint is due every 40 s.
OPTIONS: dict[str, Any] = {
    **{"stages": None, "data_eval": None, "model": "bert_2_128_2", "max_seq_length": 64, "batch_size": 16},
    **{"num_steps": 10**6, "lr": 0.001, "warmup_ratio": 0.01, "ckpt_interval": 400, "keep_checkpoints": 3},
    **{"num_buckets": None},
}


def cases(setting: Setting) -> Iterator[str]:
    """An hour without a spare host, and one with."""
    for spare in (0, 1):
        yield named(minutes=60, spare=spare, seed=setting.seed)


def attempt(setting: Setting, parts: Parts) -> Tally:
    """A run of so many minutes."""
    draw, spare = random.Random(int(parts["seed"])), int(parts["spare"])
    failures = int(float(parts["minutes"]) * 60 / EVERY) - 1
    every = [*KINDS[setting.backend], *([LOST, LOST] if spare else [])]
    with (
        small_disk(setting.folder("disks") / "disk", "512M") as disk,
        two_hosts(setting.work, 1, bool(spare)) as hosts,
    ):
        directory = disk / "run"
        if spare:
            with hosts.hostfile.open("a", encoding="ascii") as file:
                file.write(f"# spare: {SPARE_ADDRESS} slots=1\n")
        begun = time.monotonic()
        recoveries, texts = [], []
        with started(Job(setting), directory, hosts, ["--host_tries", "1"], **OPTIONS) as run:
            attack = Attack(run, setting, hosts, directory)
            for number, kind in enumerate(kinds(every, failures, draw), 1):
                moment = begun + number * EVERY
                attack.wait(lambda moment=moment: time.monotonic() >= moment, "", 2 * EVERY)
                try:
                    recoveries.append(attack.strike(kind))
                except AssertionError as error:  # the other failures still count, if the run goes on
                    texts.append(str(error))
                    if run.poll() is not None:
                        break
            else:
                attack.wait(lambda: time.monotonic() >= begun + (failures + 1) * EVERY, "", 2 * EVERY)
                run.signal(signal.SIGTERM)
            result = run.wait()
        seconds = time.monotonic() - begun
        metrics = json_lines(directory / "metrics.jsonl")
    # What the steps of the metrics take undisturbed: the median of one, each.
    times = {each["step"]: each["time"] for each in metrics if "lr" in each}
    step = statistics.median(times[one + 1] - times[one] for one in times if one + 1 in times)
    goodput = len(times) * step / seconds
    texts += [misreported(each) for each in recoveries]
    lost = [(each.kind, each.record["lost_steps"]) for each in recoveries if each.record]
    texts += [f"{kind}: {steps} steps are lost" for kind, steps in lost if steps > 1]
    texts += ["" if result.returncode == 143 else result.describe(1500)]
    texts += ["" if goodput >= LEAST else f"goodput is {goodput:.1%}"]
    measured = (
        f"{setting.backend}, {parts['minutes']} minutes {'with' if spare else 'without'} a spare host, "
        f"{failures} failures: goodput {goodput:.1%}, steps of {step:.3f} s; {told(recoveries)}"
    )
    return Tally.of(*texts, tried=failures + 1, measured=measured)


def told(recoveries: Sequence[Recovery]) -> str:
    """Median seconds from a failure to the next step by how it failed, and those of the phases."""

    def how(one: Recovery) -> str:
        return {"kill": "process killed", "stop": "process stopped"}.get(one.kind[:4], one.kind)

    texts = []
    for name, each in itertools.groupby(sorted(recoveries, key=how), how):
        group = list(each)
        total = statistics.median(one.seconds for one in group)
        phases = [f"{phase} {statistics.median(one.phases[phase] for one in group):.1f}" for phase in PHASES]
        texts.append(f"{name}: {total:.1f} s (median of {len(group)}: {', '.join(phases)})")
    return "; ".join(texts)


SLEEPS = """
import time, training.run
restore = training.run.restore_states
def slow(*given, **named):
    time.sleep(20)
    return restore(*given, **named)
training.run.restore_states = slow
"""
PROGRAM = Program(
    "goodput",
    "something fails every minute for an hour, with and without a spare host: useful step time of all time",
    "80%, each failure in its record",
    weight=4,
    seconds=3700,
    backends=("hvd_mpi", "byteps"),
    cases=cases,
    attempt=attempt,
    damages={
        "a restart takes 20 s more": Damage(named(minutes=4, spare=0, seed=1), "goodput is", SLEEPS),
        "nobody saves the last step": Damage(
            named(minutes=4, spare=0, seed=1), "steps are lost", NOT_RESCUED
        ),
    },
    by_hand=True,
)
