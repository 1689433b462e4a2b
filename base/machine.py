"""Description of the machine of a measurement, and of the load that others put on it. Linux only."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ISA_FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")
BF16_FLAGS = ("avx512_bf16", "amx_bf16")
CPUINFO = Path("/proc/cpuinfo")
TICKS = os.sysconf("SC_CLK_TCK")


def has_amx(cpuinfo: Path = CPUINFO) -> bool:
    """Whether this processor multiplies bfloat16 on AMX's tiles."""
    return "amx_bf16" in _flags(cpuinfo)


def multiplies_bfloat16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether this processor has instructions for products of bfloat16."""
    return not _flags(cpuinfo).isdisjoint(BF16_FLAGS)


def describe(root: Path, cpuinfo: Path = CPUINFO) -> dict[str, Any]:
    """Facts about this machine and this checkout, for JSON."""
    fields = _cpu_fields(cpuinfo)
    flags = _flags(cpuinfo)
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(root),
        "cpu": fields.get("model name", platform.processor() or platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "isa": [flag for flag in ISA_FLAGS if flag in flags],
        "native_bf16": multiplies_bfloat16(cpuinfo),
        "cache": fields.get("cache size", ""),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def gpus() -> str | None:
    """This machine's NVIDIA GPUs, such as "8 x Tesla V100-SXM2-32GB, 32510 MiB"; None where
    the driver's nvidia-smi names none."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    names = [row.strip() for row in found.stdout.splitlines() if row.strip()] if not found.returncode else []
    counted = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return "; ".join(counted) or None


def running_kernel() -> str:
    """Identifier of this boot of this machine: the same in all of its processes and containers."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def line(machine: dict[str, Any]) -> str:
    """The same for people, in two lines."""
    commit = f", commit {machine['commit']}" if machine["commit"] else ""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {' '.join(machine['isa']) or 'no AVX2'},"
        f" {machine['memory_gib']:.0f} GiB\n"
        f"{machine['system']}, Python {machine['python']}, {machine['date']}{commit}"
    )


class Others:
    """Load of the rest of the machine during a measurement."""

    def __init__(self) -> None:
        self._begun, self._own = time.monotonic(), sum(os.times()[:4])
        self._busy, self._stolen = _busy_and_stolen()

    def own_seconds(self) -> float:
        """CPU time since the beginning of this process, and of its children that have ended and were waited
        for."""
        return sum(os.times()[:4]) - self._own

    def shares(self) -> dict[str, float]:
        """Shares of all cores' time since the beginning: "others" is what neither this program nor idling
        took, "stolen" what the host gave to other guests."""
        busy, stolen = _busy_and_stolen()
        total = (time.monotonic() - self._begun) * (os.cpu_count() or 1)
        return {
            "others": max(0.0, busy - self._busy - self.own_seconds()) / total,
            "stolen": max(0.0, stolen - self._stolen) / total,
        }


def _busy_and_stolen() -> tuple[float, float]:
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq) / TICKS, steal / TICKS


def _cpu_fields(cpuinfo: Path) -> dict[str, str]:
    """Fields of the first processor in /proc/cpuinfo."""
    try:
        first = cpuinfo.read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (row.partition(":") for row in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _flags(cpuinfo: Path) -> set[str]:
    return set(_cpu_fields(cpuinfo).get("flags", "").split())


def _commit(root: Path) -> str:
    """Short hash, with "+" where files outside docs/ differ from it; "" outside a checkout."""
    git = ["git", "-C", str(root)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        changes = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"],
            capture_output=True,
            text=True,
        )
    except OSError:
        return ""
    if commit.returncode:
        return ""
    return commit.stdout.strip() + ("+" if changes.stdout.strip() else "")
