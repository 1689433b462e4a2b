"""Sets up the environment that the scripts and tests run in; ``make setup`` calls it through bootstrap.sh.

Each stage looks at its own result first, so a second run does nothing and an interrupted one goes on where it
stopped. Checks come before the first change. ``.venv/setup.json`` says what a completed set-up was made from.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from setup import cuda as cuda_wheels
from setup import machine, operators_build, packages, wheels
from setup.building import Tools
from setup.environment import Environment, base_python
from setup.errors import SetupError
from setup.progress import Progress, Stopped, stop_on_signals
from setup.wanted import Wanted, wanted

ROOT = Path(__file__).resolve().parent.parent
STAGES = 7
CHECK_LIMIT = 180.0  # seconds for a few processes to start and add up a vector
IMPORTS = "import mxnet, gluonnlp, tokenizers, sentencepiece, matplotlib, tensorboardX, tqdm, psutil, pytest"
NO_DRIVER = (
    f"no NVIDIA driver ({cuda_wheels.DRIVER}) on this machine: checking on the CPU with a stand-in for it; "
    "training needs the driver"
)
OPERATORS = "from bert.operators import load_operators; assert load_operators(), 'no library'"


def main() -> int:
    """Returns the exit code: 0 when the environment is complete and has been seen to work."""
    parser = argparse.ArgumentParser(prog="make setup", description="Sets up .venv.")
    parser.add_argument("--cuda", default="", help="CUDA version without its point, or cpu")
    options = parser.parse_args()
    stop_on_signals()
    environment = Environment(ROOT)
    progress = Progress(STAGES, ROOT / "setup.log", sys.stdout)
    try:
        with wheels.locked(ROOT, lambda: print("setup: another set-up runs in this folder; waiting ...")):
            set_up(environment, options.cuda or environment.recorded_cuda() or "cpu", progress)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: interrupted; the next make goes on from here.", file=sys.stderr)
        return 130
    return 0


def set_up(environment: Environment, cuda: str, progress: Progress) -> None:
    """All stages; returns at once when nothing is missing.

    Raises:
        SetupError: a stage cannot do its work.
    """
    machine.check_platform()
    cuda_wheels.check_version(cuda)
    needs = packages.system_needs()
    missing = packages.missing(needs)
    if not missing and environment.complete(cuda, machine.open_mpi_version()):
        print(f"set-up is complete ({environment.summary()})", file=progress.out)
        return
    began = time.monotonic()

    progress.stage("checking this machine")
    machine.check_own_name()
    environment.check_own()
    packages.refuse_unless_root(missing, os.geteuid())
    cache = wheels.cache_root(os.environ)
    all_wanted = wanted(cuda, ROOT)
    all_cached = False
    if not missing:
        machine.check_compiler()
        all_cached = wheels.all_cached(
            cache / wheels.machine_key(cuda, machine.open_mpi_version()), all_wanted
        )
    pip = machine.pip_command()
    if pip is not None and not all_cached:
        machine.check_index(pip)

    progress.stage(f"Debian packages: {' '.join(missing) or 'all there'}")
    if missing:
        packages.install(missing, progress)
        still = packages.missing(needs)
        if still:
            raise SetupError(f"apt-get reports success, but these are not there: {' '.join(still)}")
        machine.check_compiler()
    open_mpi = machine.open_mpi_version()
    folder = cache / wheels.machine_key(cuda, open_mpi)

    progress.stage(f"virtual environment .venv (Python {sys.version.split()[0]})")
    environment.create(cuda, progress)

    size = "150 MB" if cuda == "cpu" else "2.5 GB"
    progress.stage(f"pinned packages ({size} unless in the wheel cache)")
    downloads = wheels.download(folder, all_wanted, environment.python, progress)

    built = build_all(environment, all_wanted, folder, downloads, progress)

    progress.stage("installing what was built")
    environment.install_wheels(built, progress)
    if cuda != "cpu":
        cuda_wheels.link_libraries(environment.venv)

    progress.stage("checking that it works: imports, Horovod over MPI and Gloo, BytePS, fused operators")
    check(environment, cuda, progress)
    environment.finish(cuda, open_mpi)
    took = time.monotonic() - began
    print(f"set-up is complete ({environment.summary()}) after {took:.0f} s", file=progress.out)


def build_all(
    environment: Environment, all_wanted: Wanted, folder: Path, downloads: Path, progress: Progress
) -> list[Path]:
    """Builds all wheels side by side; beside them installs the pinned packages and compiles the operators.

    The builds know nothing of each other: each has an environment and a log of its own.

    Returns:
        the wheels, in the order of ``all_wanted.sources``

    Raises:
        SetupError: one of them failed; the others were stopped.
    """
    tools = Tools(base_python(), downloads, all_wanted.pins)
    names = [f"{source.name} ({source.duration})" for source in all_wanted.sources]
    progress.stage(f"side by side, unless in the wheel cache: {', '.join(names)}, fused operators (1 minute)")

    def install_and_compile() -> None:
        own = progress.beside("operators")
        environment.install_requirements(all_wanted, downloads, own)
        operators_build.build(ROOT / "native" / "operators", environment.venv, downloads, own)

    with ThreadPoolExecutor(len(all_wanted.sources) + 1) as pool:
        wheels_made = [
            pool.submit(wheels.build, folder, source, tools, progress.beside(source.name))
            for source in all_wanted.sources
        ]
        everything: list[Future[Any]] = [*wheels_made, pool.submit(install_and_compile)]
        try:
            ended, _ = wait(everything, return_when=FIRST_EXCEPTION)
            if any(future.exception() for future in ended):
                progress.stopping.set()
        except BaseException:  # a signal: nothing goes on behind it
            progress.stopping.set()
            raise
    failures = [future.exception() for future in everything]
    first = next((failure for failure in failures if failure and not isinstance(failure, Stopped)), None)
    if first is not None:
        raise first
    return [future.result() for future in wheels_made]


def check(environment: Environment, cuda: str, progress: Progress) -> None:
    """Imports what the scripts import and lets two ranks add up a vector, over MPI, Gloo and BytePS.

    Raises:
        SetupError: something does not work or does not end.
    """
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    without: dict[str, str] = {}
    if cuda != "cpu":
        stand_in = environment.venv / "lib" / "no_driver"
        without = cuda_wheels.environment_without_driver(ROOT / "native" / "cuda", stand_in, progress)
    if without:
        progress.note(NO_DRIVER)
        env.update(without)
    if os.geteuid() == 0:
        env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    python = str(environment.python)
    script = [python, str(ROOT / "setup/check_horovod.py")]
    built_with = [] if cuda == "cpu" else ["nccl"]
    gloo = [python, str(environment.venv / "bin/horovodrun"), "--gloo", "-np", "2"]
    # The transports of launched runs (hosts/mpirun.py).
    mpi = ["mpirun", "-np", "2", "--oversubscribe", "-mca", "pml", "ob1", "-mca", "btl", "^openib,ofi,uct"]
    progress.run([python, "-m", "pip", "check"], "pip check", env, CHECK_LIMIT)
    progress.run([python, "-c", IMPORTS], "imports", env, CHECK_LIMIT)
    operators = {**env, "PYTHONPATH": str(ROOT)}
    progress.run([python, "-c", OPERATORS], "loading the fused operators", operators, CHECK_LIMIT)
    progress.run([*mpi, *script, "mpi", *built_with], "Horovod over MPI on two processes", env, CHECK_LIMIT)
    progress.run(
        [*gloo, *script, "gloo", *built_with], "Horovod over Gloo on two processes", env, CHECK_LIMIT
    )
    if cuda != "cpu":
        libraries = [python, str(ROOT / "setup/check_libraries.py")]
        progress.run(libraries, "looking where CUDA's libraries are loaded from", env, CHECK_LIMIT)
    if without:
        progress.note("BytePS for GPUs is loaded and not run: its ranks need one each")
        return
    bps = [python, str(ROOT / "setup/check_byteps.py")]
    progress.run([*bps, "2", "1"], "BytePS with two workers", env, CHECK_LIMIT)
    if cuda == "cpu":  # each local rank wants a GPU of its own elsewhere
        progress.run([*bps, "1", "2"], "BytePS with two local ranks", env, CHECK_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
