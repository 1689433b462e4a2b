"""Shares of this machine's cores for compute, communication and data, compared by measuring them.

    python -m bench.threads [--ranks 1 2 4] [--settings default one_less] [--repeats 3] [--json threads.json]
    python -m bench.threads --quick

Runs run_pretraining_hvd.py under mpirun, as `make pretrain` does, with different numbers of OpenMP threads
and different bindings, and compares the seconds of a step with those of the default (base/threads.py: the
cores divided by the ranks, nothing bound). Every repeat runs each setting once, and ratios are taken within
a repeat. Random tokens need no data threads; with --with_data the ranks read the embedded English text, as a
real run would, and the number of data threads is tried as well. One launch takes 10 to 20 s on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence

from base import machine
from base.command_line import OptionParser, at_least, path_name, positive_int
from base.processes import run_in_session
from bench.contestants import ROOT
from bench.quick import NOTICE, add_quick, default_text, settle, with_progress, write_figures
from bench.rounds import ratios, spread
from bench.workers import end_at
from training.entry import exit_code

TIME_LIMIT = 300.0  # seconds for one launch
LENGTH, SEQUENCES = 128, 8
LOG_INTERVAL = 3
WARM_UP = 2  # intervals
DEFAULT = "default"
USUAL = {"ranks": [1, 2, 4], "repeats": 3, "model": "bert_4_512_8", "steps": 24}
QUICK = {"ranks": [2], "settings": ["omp_passive"], "repeats": 1, "model": "bert_2_128_2", "steps": 6}


class Setting(NamedTuple):
    """Differences from the default; `omp` is OMP_NUM_THREADS, None to let the script choose."""

    omp: int | None = None
    environ: Mapping[str, str] = {}
    mpirun: Sequence[str] = ("--bind-to", "none", "-mca", "mpi_yield_when_idle", "1")
    script: Sequence[str] = ()


def settings(cores: int, ranks: int, with_data: bool) -> dict[str, Setting]:
    """The settings worth a try for `ranks` ranks on `cores` cores. Numbers of threads that are tried already,
    the default's among them, are left out."""
    share = max(1, cores // ranks)
    chosen = {DEFAULT: Setting()}
    threads = {"one_thread": 1, "one_less": share - 1, "one_more": share + 1, "all_cores": cores}
    tried = {0, share}
    for name, count in threads.items():
        if count not in tried:
            tried.add(count)
            chosen[name] = Setting(count)
    chosen["omp_bound"] = Setting(environ={"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"})
    chosen["omp_passive"] = Setting(environ={"OMP_WAIT_POLICY": "passive"})
    chosen["omp_active"] = Setting(environ={"OMP_WAIT_POLICY": "active"})
    chosen["bind_core"] = Setting(
        mpirun=("--bind-to", "core:overload-allowed", "-mca", "mpi_yield_when_idle", "1")
    )
    if ranks > 1:
        chosen["mpi_spins"] = Setting(mpirun=("--bind-to", "none", "-mca", "mpi_yield_when_idle", "0"))
        chosen["cycle_5ms"] = Setting(environ={"HOROVOD_CYCLE_TIME": "5"})
        chosen["engine_2"] = Setting(environ={"MXNET_CPU_WORKER_NTHREADS": "2"})
    if with_data:
        chosen["data_2"] = Setting(script=("--num_data_workers", "2"))
        chosen["data_4"] = Setting(script=("--num_data_workers", "4"))
    return chosen


def command(setting: Setting, ranks: int, script: Sequence[str], folder: str) -> list[str]:
    words = [sys.executable, str(ROOT / "run_pretraining_hvd.py"), *script, *setting.script]
    words += ["--ckpt_dir", folder]
    return ["mpirun", "-np", str(ranks), "--oversubscribe", *setting.mpirun, *words]


def environment(setting: Setting, environ: Mapping[str, str], is_root: bool) -> dict[str, str]:
    """Without the thread settings of the caller: they are what is tried."""
    kept = {name: value for name, value in environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    if setting.omp is not None:
        kept["OMP_NUM_THREADS"] = str(setting.omp)
    if is_root:
        kept.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return {**kept, **setting.environ}


def step_seconds(metrics: Path) -> float:
    """Median over the log intervals of a run, the first ones left out."""
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    seconds = [line["step_s"] for line in lines if "step_s" in line]
    return statistics.median(seconds[WARM_UP:] or seconds)


def launch(setting: Setting, ranks: int, script: Sequence[str]) -> float:
    """Seconds of a step; SystemExit with the run's last lines if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        words = command(setting, ranks, script, folder)
        environ = environment(setting, os.environ, os.geteuid() == 0)
        code, text = run_in_session(words, environ, TIME_LIMIT)
        if code:
            raise SystemExit(f"{' '.join(words)}\nfailed ({code}):\n{text[-2000:]}")
        return step_seconds(Path(folder) / "metrics.jsonl")


def table(samples: Mapping[int, Sequence[Mapping[str, float]]]) -> str:
    """By number of ranks and setting: median seconds of a step, tokens a second, and the time against the
    default's of the same repeat; the fastest first."""
    lines = [f"{'':14} {'s/step (quartiles)':26} {'tokens/s':>9}   to the default (quartiles)"]
    for ranks, repeats in samples.items():
        lines.append(f"{ranks} rank{'s' if ranks > 1 else ''}")
        names = {name: ratios(repeats, name, DEFAULT) for name in repeats[0]}
        for name, own in sorted(names.items(), key=lambda item: statistics.median(item[1])):
            step, ratio = spread([repeat[name] for repeat in repeats]), spread(own)
            time = f"{step.median:.3f} ({step.low:.3f} to {step.high:.3f})"
            tokens = ranks * SEQUENCES * LENGTH / step.median
            against = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
            lines.append(f"  {name:12} {time:26} {tokens:>9.0f}   {against}")
    return "\n".join(lines)


def script_options(model: str, steps: int, text_in: str | None) -> list[str]:
    """Options of the training script, the same for all settings. `text_in`: a folder for the embedded text;
    None: random tokens."""
    words = ["--model", model, "--batch_size", str(SEQUENCES), "--num_steps", str(steps)]
    words += [
        "--log_interval",
        str(LOG_INTERVAL),
        "--ckpt_interval",
        str(steps),
        "--progress",
        "none",
        "--peak_tflops",  # else measured, and nothing here is a share of it
        "1",
    ]
    if text_in is None:
        return [*words, "--dummy_data_len", str(LENGTH)]
    paths, vocab = default_text(text_in)
    words += ["--raw", "--data", ",".join(paths), "--vocab", vocab, "--max_seq_length", str(LENGTH)]
    return [*words, "--cache_dir", os.path.join(text_in, "tokens")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OptionParser(
        prog="python -m bench.threads",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--ranks", type=positive_int, nargs="+", help="(default: 1 2 4)")
    parser.add_argument("--settings", nargs="+", metavar="NAME", help="beside the default (default: all)")
    parser.add_argument("--repeats", type=positive_int, metavar="N", help="launches of each (default: 3)")
    parser.add_argument("--model", help="(default: bert_4_512_8)")
    parser.add_argument("--steps", type=at_least(LOG_INTERVAL), metavar="N", help="of a launch (default: 24)")
    parser.add_argument("--with_data", action="store_true", help="read text instead of random tokens")
    parser.add_argument("--json", type=path_name, metavar="FILE", help="write all figures there")
    add_quick(parser, "2 ranks, omp_passive, 1 repeat, bert_2_128_2, 6 steps")
    options = parser.parse_args(arguments)
    settle(options, USUAL, QUICK)
    here = machine.describe(ROOT)
    chosen: dict[int, dict[str, Setting]] = {}
    for ranks in options.ranks:
        every = settings(here["cores"], ranks, options.with_data)
        wanted = {DEFAULT, *(options.settings or every)}
        chosen[ranks] = {name: setting for name, setting in every.items() if name in wanted}
    unknown = set(options.settings or ()).difference(*chosen.values())
    if unknown:
        parser.error(f"no settings here: {', '.join(sorted(unknown))}")
    end_at(signal.SIGINT, signal.SIGTERM)  # with the run
    samples: dict[int, list[dict[str, float]]] = {ranks: [] for ranks in chosen}
    work = [(ranks, repeat) for ranks in chosen for repeat in range(options.repeats)]
    with tempfile.TemporaryDirectory() as folder:
        script = script_options(options.model, options.steps, folder if options.with_data else None)
        try:
            for ranks, _ in with_progress(work):
                samples[ranks].append(
                    {name: launch(one, ranks, script) for name, one in chosen[ranks].items()}
                )
        finally:  # interrupted, it reports the repeats that are whole
            whole = {ranks: repeats for ranks, repeats in samples.items() if repeats}
            title = f"{options.model}, {SEQUENCES} x {LENGTH} tokens a rank"
            print(f"{machine.line(here)}\n{title}\n\n{table(whole)}", flush=True)
            if options.quick:
                print(NOTICE, flush=True)
            if options.json:
                result = {"machine": here, "model": options.model, "quick": options.quick, "step_s": whole}
                write_figures(options.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
