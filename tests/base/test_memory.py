"""Memory that is there, from files as Linux writes them."""

from __future__ import annotations

import sys
from pathlib import Path

from base.memory import available_memory
from tests.processes import ROOT, run_command

GIB = 1 << 30


def laid_out(folder: Path, group: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A /proc with 8 GiB available, and a /sys/fs/cgroup with these files."""
    proc, mount = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 16777216 kB\nMemFree: 100 kB\nMemAvailable:    8388608 kB\n")
    (proc / "self" / "cgroup").write_text(group)
    for name, text in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(text)
    return proc, mount


def test_the_machine_without_a_group(tmp_path: Path) -> None:
    found = available_memory(*laid_out(tmp_path, "0::/user\n", {"user/memory.max": "max\n"}))
    assert found.bytes == 8 * GIB and "machine" in found.source


def test_version_2_counts_what_only_caches_files_as_free(tmp_path: Path) -> None:
    files = {
        "job/memory.max": f"{4 * GIB}\n",
        "job/memory.current": f"{3 * GIB}\n",
        "job/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file {GIB // 2}\n",
        "job/step/memory.max": "max\n",
    }
    found = available_memory(*laid_out(tmp_path, "0::/job/step\n", files))
    assert found.bytes == 5 * GIB // 2 and "control group" in found.source


def test_version_1_and_its_number_for_no_limit(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "5",
        "memory/job/memory.limit_in_bytes": str(2 * GIB),
        "memory/job/memory.usage_in_bytes": str(GIB),
        "memory/job/memory.stat": "total_inactive_file 0\ntotal_active_file 0\n",
    }
    assert available_memory(*laid_out(tmp_path, "4:memory:/job\n", files)).bytes == GIB


def test_what_a_process_may_map_limits_what_it_can_take() -> None:
    code = """
from base.memory import address_limit, available_bytes, available_memory
print(address_limit(), available_bytes(), available_memory().bytes)
"""
    command = f'ulimit -v {300 << 10}; exec "$0" -c "$1"'
    result = run_command(["bash", "-c", command, sys.executable, code], cwd=ROOT).check()
    limit, left, there = map(int, result.stdout.split())
    assert limit == 300 << 20 and 200 << 20 < left < 300 << 20 < there
    result = run_command([sys.executable, "-c", code], cwd=ROOT).check()
    limit, left, there = result.stdout.split()
    assert limit == "None" and left != "0" and 10 << 20 < int(there) < 1 << 50
