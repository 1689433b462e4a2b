"""Real pretraining runs on a real Slurm cluster (tests/slurm_cluster.py) that are queued again in every way,
and end with the bits of a run that was left alone. Slurm lets a job wait for two minutes before it starts
again.

Ways: requeue (an administrator's scontrol requeue), preempt (a job with a higher priority takes the nodes),
notice (the signal before the time limit, sent with scancel --signal), limit (Slurm's own, as often as it
takes; a quarter of an hour).
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any

from tests.faults.figure import Damage, Parts, Program, Setting, Tally, named
from tests.faults.jobs import Job, json_lines, metrics, moved
from tests.processes import run_command, until
from tests.slurm_cluster import Cluster, slurm_cluster

WAYS = ("requeue", "preempt", "notice", "limit")
# A job's time limit: a start works 60 to 120 s of it. Slurm looks once a minute, and gives notice 120 to
# 180 s before its end. (With 3 minutes the notice may come at once.)
MINUTES = "4"
WORK_SECONDS = 120  # of a run: more than those of one start
SECONDS = 2700.0
NEVER = "a job is not queued again"


def attempt(setting: Setting, parts: Parts) -> Tally:
    """One pair of runs, interrupted and alone."""
    folder, way = setting.folder("cluster"), parts["way"]
    with slurm_cluster(folder) as cluster:
        steps, minutes = (60, "60") if way != "limit" else (steps_in(cluster, setting), MINUTES)
        job = submitted(cluster, setting, "again", steps, "--time", minutes)
        until(lambda: len(metrics(folder / "again")) >= 10)
        disturb(cluster, job, way)
        while not queued_again(cluster, job) and way == "limit":  # the machine is faster than it was
            shutil.rmtree(folder / "again")
            steps *= 2
            job = submitted(cluster, setting, "again", steps, "--time", minutes)
        # While Slurm lets the job wait; if that is too short, it waits for the nodes.
        alone = submitted(cluster, setting, "alone", steps, "--sbatch", "exclusive")
        cluster.wait_for(alone, "COMPLETED", SECONDS)
        facts = cluster.wait_for(job, "COMPLETED", SECONDS)
        if int(facts["Restarts"]) < 1:
            return Tally.of(f"it was never queued again: {facts}")
        name = f"{steps:07d}.params"
        if (folder / "alone" / name).read_bytes() != (folder / "again" / name).read_bytes():
            return Tally.of("other bits than the run that was left alone")
        logged = [each["step"] for each in metrics(folder / "again") if "mlm_loss" in each]
        if logged != sorted(set(logged)):
            return Tally.of(f"steps in metrics.jsonl: {logged}")
        time.sleep(3)
        left = [*cluster.processes(0), *cluster.processes(1)]
        return Tally.of(f"left behind: {left}" if left else "")


def steps_in(cluster: Cluster, setting: Setting) -> int:
    """Steps that this machine does in WORK_SECONDS, by a job of 40."""
    cluster.wait_for(submitted(cluster, setting, "probe", 40), "COMPLETED", SECONDS)
    lines = json_lines(cluster.folder / "probe" / "metrics.jsonl")
    times = [each["time"] for each in lines if "mlm_loss" in each]
    return int(WORK_SECONDS * (len(times) - 1) / (times[-1] - times[0]))


def submitted(cluster: Cluster, setting: Setting, name: str, steps: int, *more: str) -> str:
    """Writes a script, as a user does, and submits it."""
    run = Job(setting)
    own = run.words(
        cluster.folder / name, stages=None, data_eval=None, resume=None, max_seq_length=16, batch_size=8,
        num_buckets=None, num_steps=steps, lr=0.02, warmup_ratio=0.2, ckpt_interval=max(20, steps // 4),
    )  # fmt: skip
    backend = setting.backend.partition("_")[0]
    words: list[Any] = ["hosts/slurm.py", "--backend", backend, "--nodes", 2, "--tasks_per_node", 1]
    words += ["--notice", 120, "--name", name, "--interface", "wire0", "--python", sys.executable, *more]
    words += ["--requeues", 0] if setting.damage == NEVER else []
    words += ["--sbatch", f"output={cluster.folder}/{name}.out", "--", run.script, *own]
    script = cluster.folder / f"{name}.sbatch"
    script.write_text(run_command([sys.executable, *map(str, words)]).check().stdout, encoding="utf-8")
    return cluster.submit(script)


def disturb(cluster: Cluster, job: str, way: str) -> None:
    """Interrupts the job; its time limit comes by itself."""
    if way == "requeue":
        cluster.run("scontrol", "requeue", job)
    elif way == "preempt":
        script = cluster.folder / "urgent.sh"
        script.write_text("#!/bin/sh\nsleep 3\n", encoding="ascii")
        output = f"--output={cluster.folder}/urgent.out"
        cluster.submit("--partition=urgent", "--nodes=2", "--exclusive", output, script)
    elif way == "notice":
        cluster.run("scancel", "--batch", "--signal=USR1", job)


def queued_again(cluster: Cluster, job: str) -> bool:
    """Waits until a job is queued again, or has ended; returns which."""

    def known() -> dict[str, str] | None:
        facts = cluster.facts(job)
        ended = facts["JobState"] in ("COMPLETED", "FAILED", "CANCELLED")
        return facts if ended or int(facts["Restarts"]) else None

    return int(until(known, pause=0.5, limit=SECONDS)["Restarts"]) > 0


PROGRAM = Program(
    "slurm",
    "a job on Slurm requeued, preempted, at its time limit: parameters and steps",
    "the undisturbed run's bits, nothing left",
    seconds=600,
    backends=("hvd_mpi", "byteps"),
    cases=lambda setting: [named(way=way) for way in WAYS],
    attempt=attempt,
    damages={
        NEVER: Damage(named(way="notice"), "FAILED|never queued again"),
        "a job queued again begins at other data": Damage(named(way="notice"), "other bits", moved(1)),
    },
    by_hand=True,
)
