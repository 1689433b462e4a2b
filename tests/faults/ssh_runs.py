"""Real pretraining runs over real ssh (tests/ssh_hosts.py) that are disturbed and end with the bits of a run
that was left alone (over BytePS on three hosts: with its losses, within 1e-4). Run it by hand; it takes some
minutes:

    .venv/bin/python -m tests.faults.ssh_runs [--backend hvd] [--hosts 3] [--way cut]

Ways: faults (each of tests/hosts/test_ssh.py: one line with the host and the cure, nothing started), kill (a
rank on the other host), cut (the other host's wire is taken down, and mended when the launcher has noticed
it), interrupt (Ctrl-C, and the same command with --resume), printed (the command of hparams.py --launch hvd,
stopped by SIGUSR1 to mpirun). Without --hosts on two hosts, then on three. Prints a line for each and exits
with 1 if any ends otherwise, or leaves a process on any host.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Sequence

from data.embedded import build
from tests.hosts.test_ssh import FAULTS, PASSING, launcher
from tests.namespaces import INTERFACE
from tests.processes import ROOT, Run, run_command, start_command
from tests.ssh_hosts import SshHosts, ssh_hosts

SCRIPTS = {"hvd": "run_pretraining_hvd.py", "byteps": "run_pretraining_byteps.py"}
WAYS = ("faults", "kill", "cut", "interrupt", "printed")
STEPS = 60
SECONDS = 1200.0  # of a run, also on a busy machine
REACTS_S = 300
LOSSES = 1e-4  # of the greater: what docs/comparison.md allows where sums have no fixed order
ENV = {"OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def main() -> int:
    """Runs what is asked for; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", action="append", choices=sorted(SCRIPTS))
    parser.add_argument("--hosts", action="append", type=int, choices=(2, 3))
    parser.add_argument("--way", action="append", choices=WAYS)
    args = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="ssh-runs-") as name:
        folder = Path(name)
        build(str(folder), vocab_size=1024)
        for number in args.hosts or (2, 3):
            with ssh_hosts(folder, number) as hosts:
                for backend in args.backend or sorted(SCRIPTS):
                    wrong += all_ways(hosts, backend, args.way or WAYS)
    return 1 if wrong else 0


def all_ways(hosts: SshHosts, backend: str, ways: Sequence[str]) -> int:
    """One backend on these hosts; prints a line for each way, and returns how many went wrong."""
    wrong, number = 0, len(hosts.holders)
    alone = hosts.folder / f"{backend}.{number}.alone"
    if set(ways) - {"faults", "printed"}:
        start(hosts, backend, alone).wait().check()
    for way in ways:
        if way == "printed" and backend != "hvd":
            continue
        begun = time.monotonic()
        said = attempt(hosts, backend, way, alone)
        seconds = time.monotonic() - begun
        verdict = f"WRONG: {said}" if said else "ok"
        print(f"{backend:7} {number} hosts {way:10} {verdict} ({seconds:.0f} s)", flush=True)
        wrong += bool(said)
    return wrong


def attempt(hosts: SshHosts, backend: str, way: str, alone: Path) -> str:
    """One disturbed run; returns what was wrong, empty if nothing."""
    own = alone.with_suffix(f".{way}")
    if way == "faults":
        return faults(hosts, backend)
    if way == "printed":
        return printed(hosts, own)
    with start(hosts, backend, own) as run:
        wait_for_steps(run, own, 25)
        if way == "kill":
            os.kill(rank_on_beta(hosts), signal.SIGKILL)
        elif way == "interrupt":
            run.signal(signal.SIGINT)
            if run.wait().returncode != 130:
                return run.wait().describe()
        else:
            hosts.cut(1)
            try:
                until(run, lambda: "restart 1" in run.stderr() or "10.77.0.2, try 1" in run.stderr())
            finally:
                hosts.mend(1)
        result = run.wait()
    if way == "interrupt":
        result = start(hosts, backend, own, "--resume").wait()
    if result.returncode != 0:
        return result.describe()
    return difference(hosts, backend, own, alone) or left_behind(hosts)


def faults(hosts: SshHosts, backend: str) -> str:
    """Each fault of the second host, before anything is started."""
    for name, (make, cure) in FAULTS.items():
        if backend == "byteps" and name == "no Open MPI":
            continue  # BytePS needs none
        with tempfile.TemporaryDirectory(prefix="ssh-fault-") as place, make(hosts, Path(place)):
            begun = Path(place, "begun")
            ssh = f"{hosts.ssh} -o ConnectTimeout=1"
            words = launcher(hosts, backend=backend, number=len(hosts.holders), ssh=ssh)
            result = run_command([*words, "--", sys.executable, "-c", f"open({str(begun)!r}, 'w')"], env=ENV)
            code = 1 if name in PASSING else 2
            if result.returncode != code or result.stderr.count("\n") != 1 or cure not in result.stderr:
                return f"{name}: {result.describe()}"
            if begun.exists():
                return f"{name}: a rank was started"
        left = left_behind(hosts)
        if left:
            return f"{name}: {left}"
    return ""


def start(hosts: SshHosts, backend: str, folder: Path, *more: Any) -> Run:
    """Starts a run with a rank on each host."""
    launch = [
        *hosts.prefix,
        sys.executable,
        ROOT / "hosts" / "launch.py",
        "--backend",
        backend,
        "--backoff",
        "1",
    ]
    launch += [
        "--hostfile",
        hosts.hostfile,
        "--ssh",
        hosts.ssh,
        "--interface",
        INTERFACE,
        "--host_tries",
        "9",
    ]
    words = [
        SCRIPTS[backend],
        *options(hosts, folder),
        "--num_steps",
        STEPS,
        "--lr",
        "0.02",
        "--warmup_ratio",
        "0.2",
    ]
    words += ["--batch_size", "8", "--max_seq_length", "16"]
    return start_command(
        [*launch, "--", sys.executable, *map(str, words), *more], timeout=SECONDS, env=ENV, grace=60
    )


def options(hosts: SshHosts, folder: Path) -> list[Any]:
    text = hosts.folder
    return [
        *("--raw", "--data", text / "corpus" / "eval.txt", "--vocab", text / "vocab.txt"),
        *("--cache_dir", text / "tokens", "--model", "bert_1_32_2", "--comm_timeout", "120"),
        *("--log_interval", "1", "--ckpt_interval", "20", "--ckpt_dir", folder),
    ]


def printed(hosts: SshHosts, folder: Path) -> str:
    """The command of hparams.py with a small model, as it is but for what the machine that plays both hosts
    lacks."""
    plan = [
        sys.executable,
        "hparams.py",
        "--launch",
        "hvd",
        "--hostfile",
        hosts.hostfile,
        "--interface",
        INTERFACE,
    ]
    plan += ["--tokens_per_gpu", "1024", "--stage", "1", "--", *options(hosts, folder), "--dtype", "float32"]
    command = run_command(plan).check().stdout.replace(" python run_", f" {sys.executable} run_")
    command = command.replace("-bind-to socket", "-bind-to none --oversubscribe").partition("mpirun ")[2]
    path = os.pathsep.join([str(hosts.folder / "bin"), os.environ["PATH"]])
    words = [*hosts.prefix, "bash", "-c", f"exec mpirun {command}"]
    with start_command(words, timeout=SECONDS, env={**ENV, "PATH": path}, grace=60) as run:
        wait_for_steps(run, folder, 5)
        run.signal(signal.SIGUSR1)
        result = run.wait()
    if result.returncode != 143 or not list(folder.glob("*.params")):
        return result.describe()
    return left_behind(hosts)


def wait_for_steps(run: Run, folder: Path, number: int) -> None:
    """Waits until a run has logged so many steps."""

    def logged() -> bool:
        path = folder / "metrics.jsonl"
        return path.exists() and path.read_text(encoding="utf-8").count('"mlm_loss"') >= number

    until(run, logged)


def until(run: Run, done: Any) -> None:
    end = time.monotonic() + REACTS_S
    while not done():
        assert run.poll() is None and time.monotonic() < end, run.stderr() + run.stdout()
        time.sleep(0.05)


def rank_on_beta(hosts: SshHosts) -> int:
    """Process id of the rank on the second host."""
    space = os.stat(f"/proc/{hosts.holders[1]}/ns/net").st_ino
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            if (
                os.stat(f"/proc/{entry}/ns/net").st_ino == space
                and words[1:2]
                and words[1].startswith(b"run_pre")
            ):
                return int(entry)
    raise AssertionError("there is no rank on the second host")


def left_behind(hosts: SshHosts) -> str:
    try:
        hosts.wait_until_empty()
    except AssertionError as error:
        return str(error)
    return ""


def difference(hosts: SshHosts, backend: str, own: Path, alone: Path) -> str:
    """Compares a run with the one that was left alone. BytePS's servers add in the order of arrival: over
    more than two hosts losses are compared, within rounding."""
    expected, found = losses(alone), losses(own)
    if [step for step, _ in found] != list(range(1, STEPS + 1)):
        return f"steps in metrics.jsonl: {[step for step, _ in found]}"
    if backend == "byteps" and len(hosts.holders) > 2:
        apart = max(abs(a - b) / b for (_, a), (_, b) in zip(found, expected))
        return f"losses are {apart:.1e} apart" if apart > LOSSES else ""
    return "" if bits(own) == bits(alone) else "other bits than the run that was left alone"


def losses(folder: Path) -> list[tuple[int, float]]:
    """Each step's number and masked-LM loss."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [(each["step"], each["mlm_loss"]) for each in map(json.loads, lines) if "mlm_loss" in each]


def bits(folder: Path) -> str:
    """A digest of the last parameters."""
    return hashlib.sha256((folder / f"{STEPS:07d}.params").read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
