"""A script for the tests of hosts/launch.py's restarts: behaves like a training script, in milliseconds.

    restarted.py --ckpt_dir DIR [--resume] [--steps N] PLAN

Each step is a line of rank 0's in DIR/metrics.jsonl, each third step a checkpoint (only its names).
PLAN is a JSON list with an entry for each start: null, or [step, rank, action]. At that step the rank acts,
and the others hang, as in an exchange: "exit 3 words", "kill 9", "note KIND" (left for the launcher, and exit
code 1), "down FILE" (which is made before), "wait" (all of them, for a signal). SIGTERM, SIGUSR1 and SIGINT
make each rank end after its step, with 143 or 130; rank 0 saves before.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("BYTEPS_GLOBAL_RANK", "0")))
RUN = os.environ.get("BYTEPS_RUN_ID", os.environ.get("PMIX_NAMESPACE", ""))  # of this start only
# Open MPI 5 has a folder of its own in the launcher's.
SESSION = "PMIX_SERVER_TMPDIR" if "PRTE_LAUNCHED" in os.environ else "OMPI_MCA_orte_tmpdir_base"
FOLDERS = (SESSION, "OMPI_MCA_btl_vader_backing_directory")
SIZE = int(os.environ.get("OMPI_COMM_WORLD_SIZE", os.environ.get("DMLC_NUM_WORKER", "1")))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ckpt_dir", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("plan")
    args = parser.parse_args()
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, lambda number, _: stopped.append(number))
    args.ckpt_dir.mkdir(exist_ok=True)
    start, first = beginning(args)
    plan = json.loads(args.plan)
    entry = plan[start] if start < len(plan) else None
    metrics = args.ckpt_dir / "metrics.jsonl"
    if RANK == 0:
        lines = metrics.read_text().splitlines()[:first] if metrics.exists() else []
        metrics.write_text("".join(f"{line}\n" for line in lines))
        folders = [os.environ[name] for name in FOLDERS if name in os.environ]
        assert all(map(os.path.isdir, folders))
        (args.ckpt_dir / f"folders.{start}").write_text("\n".join(folders))
        print(f"start {start} of {SIZE} ranks after step {first}", flush=True)
    for step in range(first + 1, args.steps + 1):
        if entry and step == entry[0]:
            act(entry, metrics, step, stopped)
        if RANK == 0:
            with metrics.open("a") as file:
                file.write(json.dumps({"step": step, "ranks": SIZE}) + "\n")
            if step % 3 == 0 or stopped:
                save(args.ckpt_dir, step)
        if stopped:
            sys.exit(130 if stopped[0] == signal.SIGINT else 143)


def beginning(args: argparse.Namespace) -> tuple[int, int]:
    """Starts of rank 0 before this one, and the step to go on after; rank 0 decides."""
    place = args.ckpt_dir / f"begins.{RUN}"
    if RANK:
        until(place.exists)
        start, first = json.loads(place.read_text())
        return start, first
    start = len(list(args.ckpt_dir.glob("begins.*")))
    first = max([int(path.stem) for path in args.ckpt_dir.glob("0*.json")], default=0)
    if first and not args.resume:
        fail("error: --ckpt_dir holds checkpoints; continue them with --resume", 2)
    (args.ckpt_dir / "begins").write_text(json.dumps([start, first]))
    (args.ckpt_dir / "begins").rename(place)
    return start, first


def act(entry: list, metrics: Path, step: int, stopped: list[int]) -> None:
    _, rank, do = entry
    if do == "wait" or rank != RANK:
        until(lambda: bool(stopped))
        if do == "wait":
            return
        os._exit(143)
    until(lambda: metrics.exists() and metrics.read_text().count("\n") >= step - 1)
    kind, _, rest = do.partition(" ")
    if kind == "down":  # its host, too: the tests' remote shell looks for the file
        Path(rest).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "kill":
        os.kill(os.getpid(), int(rest))
    if kind == "note":
        sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
        from base.failures import leave

        leave(1, rest, "error: it broke")
        fail("error: it broke", 1)
    code, _, words = rest.partition(" ")
    fail(words, int(code))


def until(done) -> None:
    end = time.monotonic() + 600
    while not done() and time.monotonic() < end:
        time.sleep(0.01)


def save(folder: Path, step: int) -> None:
    for end in (".params", ".states.npz", ".json"):
        (folder / f"{step:07d}{end}").write_text("")


def fail(words: str, code: int) -> None:
    print(words, file=sys.stderr, flush=True)
    os._exit(code)


if __name__ == "__main__":
    main()
