"""How long ranks of this machine take to exchange gradients: Horovod over MPI against BytePS, in turn.

    python -m bench.exchange [--sizes bert-base 25x16] [--repeats 3] [--rounds 5] [--output exchange.json]
    python -m bench.exchange --quick

Every repeat runs each backend once, so that a slow minute of the machine meets all of them; ratios are taken
within a repeat. "start-up" is joining, a broadcast of all arrays and the first average; "round" an average of
all arrays and the agreement after it, as in a training step. Timings of a shared machine are noisy: the table
shows the median and the extremes. A backend that is not installed is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Sequence

from tqdm import tqdm

from base.command_line import positive_int
from base.processes import run_in_session
from bench.quick import NOTICE, add_quick, settle

ROOT = Path(__file__).resolve().parent.parent
SIZE = r"bert-base|[1-9]\d*x(\d*[1-9]\d*(\.\d*)?|\d*\.\d*[1-9]\d*)"  # a number above 0 of arrays and of MB
TIME_LIMIT = 300  # seconds for one launch
HOROVOD = "Horovod, MPI"
BACKENDS = {HOROVOD: "horovod", "BytePS, 2 workers": "byteps", "BytePS, 2 local ranks": "byteps"}


def missing(name: str) -> str | None:
    """Says what a backend lacks on this machine; None where it can run."""
    library = BACKENDS[name]
    if importlib.util.find_spec(library) is None:
        return f"{library} is not installed here (make setup installs it)"
    if library == "horovod" and shutil.which("mpirun") is None:
        return "there is no mpirun on this machine's PATH"
    return None


def command(name: str, directory: Path, worker: Sequence[str]) -> list[str]:
    """The launcher's words and the worker's."""
    rank = [sys.executable, str(ROOT / "bench/exchange_worker.py"), BACKENDS[name], *worker]
    if name == HOROVOD:
        return ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none", *rank]
    hostfile = directory / "hostfile"
    local = "localhost slots=2\n" if "local" in name else "localhost slots=1\n" * 2
    hostfile.write_text(local, encoding="ascii")
    return [sys.executable, str(ROOT / "hosts/launch_byteps.py"), "--hostfile", str(hostfile), "--", *rank]


def launch(name: str, sizes: str, rounds: int, bucket_mb: str | None) -> dict[str, Any]:
    """One launch's figures; raises SystemExit with the launcher's last lines if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        output = directory / "result.json"
        worker = [sizes, str(rounds), str(output), *([bucket_mb] if bucket_mb else [])]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        if os.geteuid() == 0:
            environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        words = command(name, directory, worker)
        code, text = run_in_session(words, environ, TIME_LIMIT)
        if code:
            raise SystemExit(f"{' '.join(words)}\nfailed ({code}):\n{text[-2000:]}")
        result: dict[str, Any] = json.loads(output.read_text())
    return {"name": name, **result}


def figures(result: dict[str, Any]) -> dict[str, float]:
    return {
        "start-up s": result["join_s"] + result["broadcast_s"] + result["first_average_s"],
        "round s": statistics.median(result["round_s"]),
        "all_agree ms": 1000 * statistics.median(result["all_agree_s"]),
        "peak MB": result["peak_bytes"] / 1e6,
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """A line for each backend and size: medians, extremes, and the ratio to Horovod in the same repeat."""
    lines = []
    for sizes in dict.fromkeys(result["sizes"] for result in results):
        chosen = [result for result in results if result["sizes"] == sizes]
        lines.append(f"{sizes}: {chosen[0]['bytes'] / 1e6:.0f} MB")
        names = dict.fromkeys(result["name"] for result in chosen)
        runs = {name: [figures(r) for r in chosen if r["name"] == name] for name in names}
        for name, values in runs.items():
            cells = []
            for figure in values[0]:
                column = [value[figure] for value in values]
                cells.append(
                    f"{figure} {statistics.median(column):.3g} ({min(column):.3g} to {max(column):.3g})"
                )
            if HOROVOD in runs:
                ratios = [mine["round s"] / peer["round s"] for mine, peer in zip(values, runs[HOROVOD])]
                cells.append(f"round / Horovod's {statistics.median(ratios):.2f}")
            lines.append(f"  {name:22} {'  '.join(cells)}")
    return "\n".join(lines)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.exchange",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--sizes", nargs="+", help="bert-base or COUNTxMB (default bert-base 25x16)")
    parser.add_argument("--repeats", type=positive_int, help="launches of each backend (default 3)")
    parser.add_argument("--rounds", type=positive_int, help="exchanges timed in a launch (default 5)")
    parser.add_argument("--bucket_mb", help="BytePS: size of the buckets")
    parser.add_argument("--output", help="write all samples to this JSON file")
    add_quick(parser, "4x1, 1 launch of each backend, 2 exchanges")
    options = parser.parse_args(arguments)
    settle(
        options,
        {"sizes": ["bert-base", "25x16"], "repeats": 3, "rounds": 5},
        {"sizes": ["4x1"], "repeats": 1, "rounds": 2},
    )
    for size in options.sizes:
        if not re.fullmatch(SIZE, size):
            parser.error(f"--sizes {size}: use bert-base or COUNTxMB, such as 25x16")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    options = _options(arguments)
    lacking = {name: missing(name) for name in BACKENDS}
    for name, reason in lacking.items():
        if reason:
            print(f"{name}: left out: {reason}", flush=True)
    names = [name for name, reason in lacking.items() if reason is None]
    if not names:
        print("bench.exchange: there is no backend to measure; run make setup", file=sys.stderr)
        return 2
    results = []
    work = [(size, name) for _ in range(options.repeats) for size in options.sizes for name in names]
    for size, name in tqdm(work, disable=not sys.stderr.isatty()):
        results.append(launch(name, size, options.rounds, options.bucket_mb))
    print(table(results))
    if options.quick:
        print(NOTICE)
    if options.output:
        Path(options.output).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
