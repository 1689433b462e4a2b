"""Ends of a script: one line and its exit code."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from base.errors import not_loaded
from tests.processes import ROOT, run_command, run_ranks, until
from tests.training.small_runs import command, trained

SCRIPT = """
import errno, os, sys
from training.entry import exit_code
def main():
    raise {}
sys.exit(exit_code(main))
"""
PRINTING = "import sys; from training.entry import exit_code; sys.exit(exit_code(lambda: print(1) or 0))"
OF_SYSTEM = "OSError(errno.{0}, os.strerror(errno.{0}))"


def limited(mib: float | None, words, **environ):
    """The end of Python with these words and so many MiB of addresses."""
    limit = int(mib * 1024) if mib else "unlimited"
    words = ["bash", "-c", f'ulimit -c 0; ulimit -v {limit}; exec "$@"', "-", sys.executable, *words]
    return run_command(words, cwd=ROOT, env={"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": None, **environ})


def raising(error: str, mib: float | None = None):
    return limited(mib, ["-c", SCRIPT.format(error)])


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("OSError(errno.ENOSPC, 'No space left on device', 'loss.png')", "loss.png: No space left on device"),
        (OF_SYSTEM.format("EROFS"), "a file that is being written: Read-only file system"),
    ],
)
def test_a_disk_that_fails_is_one_line(raised, said):
    result = raising(raised)
    assert (result.returncode, result.stderr) == (1, f"error: {said}\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "words", [("-m", "training.hours", "3"), ("-c", PRINTING)], ids=["command", "script"]
)
def test_a_reader_who_has_seen_enough_is_no_error(words, unbuffered):
    """The end is quiet, with the code that a shell has for SIGPIPE."""
    read, write = os.pipe()
    os.close(read)
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    ended = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environ, stdout=write, stderr=subprocess.PIPE, timeout=100
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_a_broken_pipe_of_another_program_is_an_error():
    assert raising("BrokenPipeError").returncode == 1


@pytest.mark.parametrize(
    "words", [("numpy", "run_pretraining_hvd.py"), ("tqdm", "compare.py", "--dry_run")], ids=["early", "late"]
)
def test_a_missing_library_is_one_line(words):
    """The second script imports it after its options are checked."""
    library, *arguments = words
    code = f"import runpy, sys; sys.modules['{library}'] = None; sys.argv = {arguments}; "
    result = limited(None, ["-c", f"{code}runpy.run_path(sys.argv[0], run_name='__main__')"])
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert f" has no {library}; run `make setup` once" in result.stderr


def test_a_missing_gpu_driver_is_one_line():
    """The loader's error for a library that needs another one, as libmxnet.so does."""
    result = raising("OSError('libcuda.so.1: cannot open shared object file: No such file or directory')")
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: libcuda.so.1, NVIDIA's driver, is not on this machine")
    assert "make setup CUDA=cpu" in result.stderr


def test_rank_0_tells_what_becomes_of_a_run(tmp_path):
    """Its end, that it goes on, and a failure, each once."""
    said = tmp_path / "said"
    two = ["--accumulate", "2"]  # that two ranks can go on with
    assert trained(tmp_path / "run", *two, "--num_steps", "2") == 0
    words = [*two, "--resume", "--notify", f'echo "$RUN_EVENT|$RUN_CODE|$RUN_MESSAGE" >> {said}']

    def run(*more):
        return run_ranks(ROOT / "run_pretraining_hvd.py", 2, args=command(tmp_path / "run", *words, *more))

    def told(lines):
        until(lambda: said.exists() and len(said.read_text().splitlines()) == lines)
        return said.read_text().splitlines()

    run("--num_steps", "3").check()
    assert sorted(told(2)) == ["end|0|complete", "restart||continuing after step 2"]
    assert run("--num_steps", "2").returncode == 2
    assert told(3)[-1].startswith("failure|2|error: --num_steps 2: the checkpoint is already at step 3")


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("MemoryError", "MemoryError"),
        ("RuntimeError('Traceback:\\n  [bt] (1) f\\nstd::bad_alloc')", "std::bad_alloc"),
        ("OSError('libdnnl.so.3: failed to map segment from shared object')", "libdnnl.so.3: failed to map"),
        ("ImportError('x.so: cannot allocate memory')", "x.so: cannot allocate memory"),
        (OF_SYSTEM.format("ENOMEM"), "[Errno 12] Cannot allocate memory"),
    ],
)
def test_a_lack_of_memory_is_one_line_that_says_the_limit(raised, said):
    limits = {None: ""}
    if raised == "MemoryError":
        limits[2000] = "raise ulimit -v, which allows 2,000 MiB"
    for limit, shown in limits.items():
        result = raising(raised, limit)
        (line,) = result.stderr.splitlines()
        assert result.returncode == 1 and line.startswith(f"error: memory does not suffice: {said}"), line
        assert shown in line and ("ulimit" in line) == bool(shown)


def test_other_errors_of_a_library_or_the_system_are_defects():
    """The loader's small room for variables of threads is no lack of memory."""
    tls = "ImportError('libgomp.so.1: cannot allocate memory in static TLS block')"
    for raised in (tls, "RuntimeError('x')", OF_SYSTEM.format("EBADF")):
        result = raising(raised)
        assert result.returncode == 1 and "Traceback" in result.stderr


# Little memory, for real: from Python's own 150 MB on to where MXNet just so fits.
SMALL = ["--dummy_data_len", "16", "--model", "bert_1_32_2", "--batch_size", "1", "--num_steps", "2"]


@pytest.mark.parametrize(("backend", "mib"), [("hvd", 200), ("hvd", 1500), ("byteps", 500)])
def test_what_cannot_fit_ends_before_mxnet_is_loaded(backend, mib, tmp_path):
    result = limited(mib, [f"run_pretraining_{backend}.py", *SMALL, "--ckpt_dir", tmp_path / "run"])
    (line,) = result.stderr.splitlines()
    assert result.returncode == 2 and not (tmp_path / "run").exists()
    assert f"ulimit -v allows {mib:,} MiB" in line and "MALLOC_ARENA_MAX=1" in line and "setup" not in line


@pytest.mark.parametrize(("threads", "more"), [("1", 100), ("2", 1)])
def test_what_nearly_fits_runs_or_says_why(threads, more, tmp_path):
    """As much as the check demands is not enough for certain: a library in C++ may end the process itself,
    by a signal or through MXNet's handler of it, which says so and exits with 255."""
    least = re.search(r"maps at least ([\d,]+) MiB", limited(500, ["run_pretraining_hvd.py", *SMALL]).stderr)
    assert least
    mib = int(least[1].replace(",", "")) + more
    words = ["run_pretraining_hvd.py", *SMALL, "--ckpt_dir", tmp_path / "run"]
    result = limited(mib, words, OMP_NUM_THREADS=threads)
    errors = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert "Traceback" not in result.stderr and "setup" not in result.stderr, result.describe()
    caught = result.returncode == 255 and "Segmentation fault: 11" in result.stderr
    if not caught and result.returncode not in (-signal.SIGABRT, -signal.SIGSEGV):
        assert result.returncode in (0, 1) and len(errors) == result.returncode, result.describe()
        assert all("memory does not suffice" in line for line in errors)


def test_the_check_refuses_nothing_that_runs(tmp_path):
    """With a single arena of malloc's a run needs 700 MiB less, and the check knows it."""
    words = ["run_pretraining_hvd.py", *SMALL, "--ckpt_dir", tmp_path / "run"]
    result = limited(1400, words, MALLOC_ARENA_MAX="1")
    assert result.returncode == 0, result.describe()


def test_the_estimate_says_it_too():
    result = limited(800, ["run_pretraining_hvd.py", *SMALL, "--estimate"])
    assert result.returncode == 2 and "estimated memory of bert_1_32_2" in result.stdout
    assert "ulimit -v allows 800 MiB" in result.stderr


@pytest.mark.parametrize("library", ["horovod", "byteps"])
def test_a_library_that_cannot_be_mapped_is_not_missing(library):
    error = not_loaded(library, ImportError("mpi_lib.so: failed to map segment from shared object"))
    assert "for want of memory (mpi_lib.so: failed to map" in str(error) and "setup" not in str(error)
    error = not_loaded(library, ImportError(f"No module named '{library}'\nmore"))
    assert str(error) == f"{library} cannot be loaded (No module named '{library}'); run `make setup`"
