"""The backends that are compared: their scripts, and the words that start their ranks. Standard library only.

On this machine every backend starts its ranks without binding them, and a rank takes its share of the cores
(base/threads.py), so that only the exchange of gradients differs. With a host file mpirun gets the words of
hosts/mpirun.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence

from base.errors import InputError
from base.files import replacing
from hosts import mpirun
from hosts.hostfile import merged

ROOT = Path(__file__).resolve().parents[1]
HVD_SCRIPT, BYTEPS_SCRIPT = ROOT / "run_pretraining_hvd.py", ROOT / "run_pretraining_byteps.py"
MPIRUN, HOROVODRUN, BYTEPS, BYTEPS_LOCAL = "mpirun", "horovodrun", "byteps", "byteps_local"

_COUNT_GPUS = "import mxnet; print('GPUs', mxnet.context.num_gpus())"
PATIENCE = 120.0  # seconds, for counting GPUs


@dataclass(frozen=True)
class Backend:
    """`title`: for people. `script`: the training script of its ranks. `launcher`: MPIRUN, HOROVODRUN, BYTEPS
    (every rank is a worker) or BYTEPS_LOCAL (one worker a host, with a rank for each slot). `variables`: of
    its processes' environment, beyond the caller's."""

    title: str
    script: Path
    launcher: str
    variables: Mapping[str, str] = field(default_factory=dict)


BACKENDS: Mapping[str, Backend] = {  # by `Setting.backend`
    "hvd_mpi": Backend("Horovod, MPI", HVD_SCRIPT, MPIRUN),
    "hvd_gloo": Backend("Horovod, Gloo", HVD_SCRIPT, HOROVODRUN),
    "byteps": Backend("BytePS", BYTEPS_SCRIPT, BYTEPS),
    "byteps_local": Backend("BytePS, local ranks", BYTEPS_SCRIPT, BYTEPS_LOCAL),
}
RINGS = ("hvd_mpi", "hvd_gloo")  # they add in a ring, in a fixed order
REFERENCE = "hvd_mpi"  # whom the others are compared with, where it takes part and not all are compared


class Cluster(NamedTuple):
    """Hosts of --hostfile. `lines`: name and slots of each line, as BytePS takes it (a line is a worker).
    `gpus`: whether they have any; all hosts are taken to be like the first."""

    lines: tuple[tuple[str, int], ...]
    gpus: bool = True

    @property
    def slots(self) -> int:
        return sum(slots for _, slots in self.lines)

    def first(self, slots: int) -> list[tuple[str, int]]:
        """The lines cut to the first so many slots."""
        hosts, left = [], slots
        for name, here in self.lines:
            if left:
                hosts.append((name, min(here, left)))
                left -= hosts[-1][1]
        return hosts


def launch_words(backend: Backend, workers: int, cluster: Cluster | None, directory: str | Path) -> list[str]:
    """The words before `python script.py ...` that start `workers` ranks.

    Args:
        cluster: the hosts, of which the first `workers` slots are taken, and they have as many; None: this
            machine.
        directory: for the host file that the launcher reads; it exists.

    Raises:
        InputError: the slots cannot be shared out as the backend needs it.
    """
    lines = cluster.first(workers) if cluster else [("localhost", workers)]
    hostfile = Path(directory) / "hostfile"
    if backend.launcher == MPIRUN:
        words = ["mpirun", "-np", str(workers)]
        if cluster is None:
            # Waiting ranks must not keep a core from the others: by default Open MPI spins.
            return [*words, "--oversubscribe", "--bind-to", "none", "-mca", "mpi_yield_when_idle", "1"]
        hosts = merged(lines)
        _write(hostfile, hosts)
        options = mpirun.options_of_mpirun(hosts, without_gpus=not cluster.gpus)
        return [*words, "--hostfile", str(hostfile), *sum(options, [])]
    if backend.launcher == HOROVODRUN:
        named = ",".join(f"{name}:{slots}" for name, slots in merged(lines))
        return [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(workers), "-H", named]
    if backend.launcher == BYTEPS_LOCAL:
        lines = merged(lines)
    elif cluster is None:
        lines = [("localhost", 1)] * workers
    if len({slots for _, slots in lines}) > 1:
        raise InputError(
            f"{workers} workers: BytePS needs as many ranks of every worker, and these slots give"
            f" {', '.join(f'{name} {slots}' for name, slots in lines)}"
        )
    _write(hostfile, lines)
    words = [sys.executable, str(ROOT / "hosts" / "launch.py"), "--backend", "byteps", "--max_restarts", "0"]
    return [*words, "--hostfile", str(hostfile), "--"]


def environment(backend: Backend, cluster: Cluster | None = None) -> dict[str, str]:
    """The variables of a launch: this process's, what Open MPI wants of root, and the backend's own; with a
    cluster also those that hosts/mpirun.py sets, for all backends alike, unless this process has them."""
    hosts = mpirun.variables(merged(cluster.lines)) if cluster is not None else {}
    variables = {**hosts, **os.environ, "PYTHONUNBUFFERED": "1"}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    if os.geteuid() == 0:
        variables.update(mpirun.AS_ROOT)
    variables.update(backend.variables)
    return variables


def _write(path: Path, lines: Sequence[tuple[str, int]]) -> None:
    with replacing(str(path)) as file:
        file.write("".join(f"{name} slots={slots}\n" for name, slots in lines).encode("ascii"))


def count_gpus() -> int:
    """GPUs that MXNet can use in this environment; MXNet is not imported into this process. Without an
    installed driver there are none, and MXNet is not started."""
    if shutil.which("nvidia-smi") is None:
        return 0
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _COUNT_GPUS], capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return 0
    words = answer.stdout.split()
    return int(words[-1]) if answer.returncode == 0 and words[-2:-1] == ["GPUs"] else 0
