"""Real pretraining runs on a real Slurm cluster (tests/slurm_cluster.py) that are queued again in every way,
and end with the bits of a run that was left alone. Run it by hand; Slurm lets a job wait for two minutes
before it starts again:

    .venv/bin/python -m tests.faults.slurm_runs [--backend hvd] [--way requeue]

Ways: requeue (an administrator's scontrol requeue), preempt (a job with a higher priority takes the nodes),
notice (the signal before the time limit, sent with scancel --signal), limit (Slurm's own, as often as it
takes; a quarter of an hour). Prints a line for each and exits with 1 if any ends otherwise, or leaves a
process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from data.embedded import build
from tests.processes import ROOT
from tests.slurm_cluster import Cluster, slurm_cluster

SCRIPTS = {"hvd": "run_pretraining_hvd.py", "byteps": "run_pretraining_byteps.py"}
WAYS = ("requeue", "preempt", "notice", "limit")
# A job's time limit: a start works 60 to 120 s of it. Slurm looks once a minute, and gives notice 120 to
# 180 s before its end. (With 3 minutes the notice may come at once.)
MINUTES = "4"
LIMIT_S = 120  # a run's seconds of work: more than those of one start
START_S = 300  # a job has done ten steps by then, also on a busy machine
SECONDS = 2700.0


def main() -> int:
    """Runs what is asked for; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", action="append", choices=sorted(SCRIPTS))
    parser.add_argument("--way", action="append", choices=WAYS)
    args = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        (folder / "text").mkdir()
        build(str(folder / "text"), vocab_size=1024)
        for backend in args.backend or sorted(SCRIPTS):
            for way in args.way or WAYS:
                place = folder / f"{backend}.{way}"
                place.mkdir()
                with slurm_cluster(place) as cluster:
                    begun = time.monotonic()
                    said = attempt(cluster, backend, way, folder / "text")
                seconds = time.monotonic() - begun
                print(
                    f"{backend:7} {way:8} {'ok' if not said else 'WRONG: ' + said} ({seconds:.0f} s)",
                    flush=True,
                )
                wrong += bool(said)
    return 1 if wrong else 0


def attempt(cluster: Cluster, backend: str, way: str, text: Path) -> str:
    """One pair of runs, interrupted and alone; returns what was wrong, empty if nothing."""
    steps, minutes = (60, "60") if way != "limit" else (steps_in(cluster, backend, text), MINUTES)
    job = submitted(cluster, backend, "again", steps, text, "--time", minutes)
    disturb(cluster, job, way)
    while not queued_again(cluster, job) and way == "limit":  # the machine is faster than it was
        shutil.rmtree(cluster.folder / "again")
        steps *= 2
        job = submitted(cluster, backend, "again", steps, text, "--time", minutes)
    # While Slurm lets the job wait; if that is too short, it waits for the nodes.
    alone = submitted(cluster, backend, "alone", steps, text, "--sbatch", "exclusive")
    cluster.wait_for(alone, "COMPLETED", SECONDS)
    facts = cluster.wait_for(job, "COMPLETED", SECONDS)
    if int(facts["Restarts"]) < 1:
        return f"it was never queued again: {facts}"
    if bits(cluster.folder / "alone", steps) != bits(cluster.folder / "again", steps):
        return "other bits than the run that was left alone"
    logged = [json.loads(line)["step"] for line in metrics(cluster).splitlines() if "mlm_loss" in line]
    if logged != sorted(set(logged)):
        return f"steps in metrics.jsonl: {logged}"
    time.sleep(3)
    left = [*cluster.processes(0), *cluster.processes(1)]
    return f"left behind: {left}" if left else ""


def steps_in(cluster: Cluster, backend: str, text: Path) -> int:
    """Steps that this machine does in LIMIT_S, by a job of 40."""
    cluster.wait_for(submitted(cluster, backend, "probe", 40, text), "COMPLETED", SECONDS)
    path = cluster.folder / "probe" / "metrics.jsonl"
    times = [json.loads(line)["time"] for line in path.read_text("utf-8").splitlines() if "mlm_loss" in line]
    return int(LIMIT_S * (len(times) - 1) / (times[-1] - times[0]))


def submitted(cluster: Cluster, backend: str, name: str, steps: int, text: Path, *more: str) -> str:
    """Writes a script, as a user does, and submits it."""
    own = [SCRIPTS[backend], "--raw", "--data", text / "corpus" / "eval.txt", "--vocab", text / "vocab.txt"]
    own += ["--cache_dir", text / "tokens", "--model", "bert_1_32_2", "--max_seq_length", "16"]
    own += ["--batch_size", "8", "--num_steps", steps, "--lr", "0.02", "--warmup_ratio", "0.2"]
    own += [
        "--log_interval",
        "1",
        "--ckpt_interval",
        str(max(20, steps // 4)),
        "--ckpt_dir",
        cluster.folder / name,
    ]
    words = ["hosts/slurm.py", "--backend", backend, "--nodes", 2, "--tasks_per_node", 1, "--notice", 120]
    words += ["--name", name, "--interface", "wire0", "--python", sys.executable, *more]
    words += ["--sbatch", f"output={cluster.folder}/{name}.out", "--", *own]
    result = subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    script = cluster.folder / f"{name}.sbatch"
    script.write_text(result.stdout, encoding="utf-8")
    return cluster.submit(script)


def metrics(cluster: Cluster) -> str:
    """metrics.jsonl of the run that is interrupted, empty before it exists."""
    path = cluster.folder / "again" / "metrics.jsonl"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def disturb(cluster: Cluster, job: str, way: str) -> None:
    """Interrupts the job after ten steps."""
    end = time.monotonic() + START_S
    while metrics(cluster).count("mlm_loss") < 10:
        output = cluster.folder / "again.out"
        assert time.monotonic() < end, output.read_text(errors="replace") if output.exists() else "no output"
        time.sleep(0.05)
    if way == "requeue":
        cluster.run("scontrol", "requeue", job)
    elif way == "preempt":
        script = cluster.folder / "urgent.sh"
        script.write_text("#!/bin/sh\nsleep 3\n", encoding="ascii")
        cluster.submit(
            "--partition=urgent", "--nodes=2", "--exclusive", f"--output={cluster.folder}/urgent.out", script
        )
    elif way == "notice":
        cluster.run("scancel", "--batch", "--signal=USR1", job)


def queued_again(cluster: Cluster, job: str) -> bool:
    """Waits until a job is queued again, or complete."""
    end = time.monotonic() + SECONDS
    while True:
        facts = cluster.facts(job)
        if int(facts["Restarts"]) or facts["JobState"] == "COMPLETED":
            return bool(int(facts["Restarts"]))
        assert time.monotonic() < end and facts["JobState"] not in ("FAILED", "CANCELLED"), facts
        time.sleep(0.5)


def bits(folder: Path, step: int) -> str:
    """A digest of the last parameters."""
    return hashlib.sha256((folder / f"{step:07d}.params").read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
