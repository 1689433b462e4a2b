"""How long ranks of this machine take to exchange gradients: Horovod over MPI against BytePS, in turn.

    python -m bench.exchange [--sizes bert-base 25x16] [--repeats 3] [--rounds 5] [--output exchange.json]

Every repeat runs each backend once, so that a slow minute of the machine meets all of them; ratios are taken
within a repeat. "start-up" is joining, a broadcast of all arrays and the first average; "round" an average of
all arrays and the agreement after it, as in a training step. Timings of a shared machine are noisy: the table
shows the median and the extremes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Sequence

from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
TIME_LIMIT = 300  # seconds for one launch
BACKENDS = {"Horovod, MPI": "horovod", "BytePS, 2 workers": "byteps", "BytePS, 2 local ranks": "byteps"}


def command(name: str, directory: Path, worker: Sequence[str]) -> list[str]:
    """The launcher's words and the worker's."""
    rank = [sys.executable, str(ROOT / "bench/exchange_worker.py"), BACKENDS[name], *worker]
    if name == "Horovod, MPI":
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
        pipe, into = subprocess.PIPE, subprocess.STDOUT
        process = subprocess.Popen(
            words, env=environ, stdout=pipe, stderr=into, text=True, start_new_session=True
        )
        try:
            text, _ = process.communicate(timeout=TIME_LIMIT)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
        if process.returncode:
            raise SystemExit(f"{' '.join(words)}\nfailed ({process.returncode}):\n{text[-2000:]}")
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
        runs = {name: [figures(r) for r in chosen if r["name"] == name] for name in BACKENDS}
        for name, values in runs.items():
            cells = []
            for figure in values[0]:
                column = [value[figure] for value in values]
                cells.append(
                    f"{figure} {statistics.median(column):.3g} ({min(column):.3g} to {max(column):.3g})"
                )
            ratios = [mine["round s"] / peer["round s"] for mine, peer in zip(values, runs["Horovod, MPI"])]
            lines.append(f"  {name:22} {'  '.join(cells)}  round / Horovod's {statistics.median(ratios):.2f}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--sizes", nargs="+", default=["bert-base", "25x16"], help="bert-base or COUNTxMB")
    parser.add_argument("--repeats", type=int, default=3, help="launches of each backend (default 3)")
    parser.add_argument("--rounds", type=int, default=5, help="exchanges timed in a launch (default 5)")
    parser.add_argument("--bucket_mb", help="BytePS: size of the buckets")
    parser.add_argument("--output", help="write all samples to this JSON file")
    options = parser.parse_args()
    results = []
    work = [(size, name) for _ in range(options.repeats) for size in options.sizes for name in BACKENDS]
    for size, name in tqdm(work, disable=not sys.stderr.isatty()):
        results.append(launch(name, size, options.rounds, options.bucket_mb))
    print(table(results))
    if options.output:
        Path(options.output).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
