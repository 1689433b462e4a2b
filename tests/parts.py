"""pytest plugin of `make test` (`-p tests.parts --part NAME`), which runs the tests in three parts:

no_ranks    those that start no ranks, or seldom; in several processes
ranks       those whose ranks mostly wait, for a time limit or for each other; also in several processes,
            with the tests that share what one launch has left in the same one (`--dist loadgroup`)
alone       of both those marked `alone`: they measure times, or need the memory; one after the other

Long tests come first: at the end of a part, where some processes have nothing left to do, the others are soon
done.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

NAMES = ("no_ranks", "ranks", "alone")
TESTS = Path(__file__).resolve().parent
WITHOUT_RANKS = [
    TESTS / name
    for name in (
        *("data", "bert", "tasks", "training", "comparison", "hosts", "base/test_processes.py"),
        *("comm/test_buckets.py", "comm/byteps/test_environment.py", "bench/test_loader.py"),
        *("comm/watch/test_run_processes.py", "comm/watch/test_wire.py", "comm/watch/test_addresses.py"),
        *("native/test_operators_library.py", "native/test_same_host.py", "test_network.py"),
        *("test_hparams.py", "test_imports.py", "test_parts.py", "test_no_vanishing.py"),
        *("test_lamb_paper.py", "test_scripts.py", "setup/test_setup.py"),
        *("faults/test_bad_values.py", "faults/test_flip_bytes.py", "faults/test_program.py"),
    )
]
# Files of those folders that start ranks.
WITH_RANKS = [
    TESTS / name
    for name in (
        *("comparison/messages/test_messages.py", "comparison/runs/test_comparison.py"),
        "training/pipeline/test_pipelines.py",
    )
]
# Half a minute among the ranks'; among the others many seconds, or a launch that several share.
LONG = [
    TESTS / name
    for name in (
        *("bench/test_quick.py", "comm/watch/test_watchdog.py"),
        *("comm/test_contract.py", "comm/test_compression.py", "faults/test_rescue.py"),
        *("test_finetune.py", "test_pretraining.py", "test_sagemaker.py", "test_make_finetune.py"),
        *("comm/test_equality.py", "faults/test_kill_at_boundary.py", "faults/test_kill_pause_cut.py"),
        *("hosts/launching/test_lost_hosts.py", "faults/test_fill_disk.py"),
        "training/finetuning/test_several.py",
        *("training/test_budget.py", "training/test_following.py", "training/start/test_lock.py"),
        *("training/test_run_file.py", "training/test_stopping.py"),
    )
] + WITH_RANKS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=NAMES, help="run this part of the tests only")


@functools.cache  # each test of a file asks, and comparing paths takes longer than all else here
def without_ranks(path: Path) -> bool:
    """Whether a file's tests are of the part `no_ranks`."""
    return path not in WITH_RANKS and any(path == each or each in path.parents for each in WITHOUT_RANKS)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out whole files of the other parts, so that they are not imported either."""
    part = config.getoption("part")
    if collection_path.suffix != ".py" or part is None:
        return None
    if part == "alone":
        return None if b"pytest.mark.alone" in collection_path.read_bytes() else True
    return True if without_ranks(collection_path) != (part == "no_ranks") else None


@pytest.hookimpl(tryfirst=True)  # pytest-xdist's reads the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("part")
    if part is None:
        return
    others = [item for item in items if _part_of(item) != part]
    items[:] = [item for item in items if _part_of(item) == part]
    config.hook.pytest_deselected(items=others)
    items.sort(key=lambda item: item.path not in LONG)  # else in the order of their files
    for item in items:
        if _shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def _part_of(item: pytest.Item) -> str:
    if item.get_closest_marker("alone"):
        return "alone"
    return "no_ranks" if without_ranks(item.path) else "ranks"


def _shares_a_fixture(item: pytest.Item) -> bool:
    """Whether it uses one that is made once for its module: under `--dist loadgroup` once altogether."""
    definitions = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
    return any(each.scope == "module" for definition in definitions for each in definition)
