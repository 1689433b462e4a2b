from __future__ import annotations

import os
import sys
import time

import pytest

from base.errors import InputError
from base.workers import in_order
from tests.data.store.building import Numbers, build
from tests.processes import run_command


def double(job):
    if job >= 13:
        raise InputError(f"number {job}")
    time.sleep(0.02 * (job == 12))  # the others are faster
    return 2 * job


def cannot_read(job):
    raise OSError("filter returned failure")  # as libraries raise it, with nothing else


def wait_for_parent(job):
    """Whether the environment and the process are as workers need them."""
    return os.environ["RAYON_NUM_THREADS"], os.getsid(0) == os.getpid(), len(os.sched_getaffinity(0))


def test_results_come_in_order_and_errors_in_their_turn():
    results = in_order(double, list(range(20)), 3)
    assert [next(results) for _ in range(13)] == [2 * job for job in range(13)]
    with pytest.raises(InputError, match="number 13"):
        next(results)


def test_an_error_of_a_library_keeps_its_words():
    with pytest.raises(OSError, match="filter returned failure"):
        next(in_order(cannot_read, [0], 1))


def test_workers_use_one_thread_each_and_more_cores_than_the_parent_is_bound_to():
    """mpirun binds each rank to a core; the workers of a rank that prepares data must not share that one."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("one core only")
    os.sched_setaffinity(0, {min(cores)})
    try:
        bound = list(in_order(wait_for_parent, [0], 1))
        wide = list(in_order(wait_for_parent, [0, 1], 2))
    finally:
        os.sched_setaffinity(0, cores)
    assert bound == [("1", True, 1)]
    assert all(answer[:2] == ("1", True) and answer[2] >= len(cores) for answer in wide)


def test_the_main_module_is_not_run_again(tmp_path):
    """The training scripts are the main module where this is used; a worker has no need of it."""
    script = tmp_path / "script.py"
    script.write_text(
        "from tests.data.store.building import build\nprint('main module')\n"
        "build('out', 3, 2, isolate=True)\n"
    )
    result = run_command([sys.executable, str(script)], cwd=tmp_path).check()
    assert result.stdout == "main module\n" and (tmp_path / "out" / "manifest.json").exists()


def test_defects_show_their_traceback(tmp_path):
    with pytest.raises(RuntimeError, match="unit 4:\n(.*\n)*.*KeyError: 'a defect'"):
        build(tmp_path / "out", 8, 2, Numbers("defect", 4), isolate=True)


def test_what_libraries_print_is_no_result(tmp_path, capfd):
    build(tmp_path / "out", 3, 1, Numbers("print", 1), isolate=True)
    assert capfd.readouterr().out == ""
