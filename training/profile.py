"""The parts of a training step's time: matrix products, attention, optimizer, communication, waiting.

python -m training.profile --model bert_12_768_12 --max_seq_length 128 --batch_size 8
python -m training.profile trace.json
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import io
import json
import os
import re
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, Sequence

from base.command_line import ScriptParser, count, path_name, positive, positive_int
from base.errors import InputError
from base.files import replacing
from base.tables import terminal
from base.threads import set_threads
from bert.configuration import BFLOAT16X3
from training.entry import exit_code
from training.inputs import check_inputs
from training.options import expand_options, parse_options, run_config
from training.profiling.breakdown import break_down, table
from training.profiling.picture import draw, draw_stages
from training.profiling.profiler import TraceComplete, TracePlan, separate_operators
from training.profiling.stages import stage_figures, stage_table, staged
from training.profiling.trace import Trace, chrome_events, read_trace, write_chrome
from training.run_inputs import Part

_HELP = """\
Without the name of a trace it takes training steps in one process and profiles them: the real step, on random
tokens or on --data. All options of the training scripts are understood and mean the same (--max_seq_length is
the length of the random sequences). With names it reports on traces that --profile of a training script has
written; the traces of other ranks, NAME.1, NAME.2, ..., are found beside the first.

Prints a table, and writes OUT_summary.json (the numbers), OUT.png (a picture) and OUT_timeline.json (a Chrome
trace, for https://ui.perfetto.dev or chrome://tracing). Traces of a run with --pipeline_stages also give a
table of the stages, and OUT_stages.png, with all of them on one time axis. With --ckpt_dir DIR they are
written into DIR, beside the other files of the run, unless --out names another place.
"""
_USAGE = (
    "python -m training.profile [TRACE ...] [--steps N] [--warmup N] [--out OUT] [--peak GFLOPS]"
    " [options of the training scripts]"
)
_LENGTH = 128  # tokens of random sequences when --max_seq_length is left out
_MEASURED = 1.0  # seconds for the matrix peak


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code.

    Raises:
        InputError: an option, or a trace that is missing, damaged or another program's.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments and not arguments[0].startswith("-"):
        options = _parser(of_traces=True).parse_args(arguments)
        out = options.out or re.sub(r"\.json$", "", options.traces[0])
        _check_folder(out)
        traces = [read_trace(path) for path in _of_all_ranks(options.traces)]
    else:
        options, rest = _parser(of_traces=False).parse_known_args(arguments)
        rest = expand_options(rest)
        if options.out:
            _check_folder(options.out)
        out = options.out or os.path.join(os.path.expanduser(_looked_at(rest).ckpt_dir or ""), "profile")
        traces = [profile(rest, options.warmup, options.steps)]
        if not options.peak:
            _add_peak(traces[0].facts)
    peak = options.peak or traces[0].facts.get("peak_gflops")
    report(traces, out, peak)
    return 0


def profile(arguments: Sequence[str], warmup: int, steps: int) -> Trace:
    """Takes `warmup` and then `steps` steps of a training in this process, and traces the latter.

    `arguments`: options of the training scripts. Nothing of the training stays but the trace, and with
    --ckpt_dir the run's files in that folder.

    Raises:
        InputError: as the training scripts do.
    """
    with tempfile.TemporaryDirectory(prefix="bert-profile-") as folder:
        given = _looked_at(arguments)
        random = [] if given.data or given.dummy_data_len else ["--dummy_data_len", str(given.max_seq_length)]
        # In front: what the user gives comes later and wins.
        options = parse_options(["--ckpt_dir", folder, *random, *arguments], _HELP)
        inputs = check_inputs(run_config(options))
        separate_operators()
        set_threads()  # before mxnet is imported below

        from comm.local import LocalCommunicator
        from tasks.pretraining.task import Pretraining
        from training.train import train_stages

        facts = {"threads": int(os.environ["OMP_NUM_THREADS"])}
        path = os.path.join(folder, "trace.json")
        options.profile = TracePlan(path, warmup + 1, warmup + steps, stop=True, facts=facts)
        # The scripts speak of schedules and losses, which are not this command's business.
        said = io.StringIO()
        with contextlib.suppress(TraceComplete), redirect_stdout(said), redirect_stderr(said):
            train_stages([Part(run_config(options), inputs)], Pretraining(), LocalCommunicator())
            raise InputError(f"the run ended before step {warmup + steps}: give it a larger --num_steps")
        return read_trace(path)


def report(traces: Sequence[Trace], out: str, peak: float | None) -> None:
    """Prints the tables and writes the files. InputError when they cannot be written."""
    found = [break_down(trace, peak) for trace in traces]
    for each in found:
        print(terminal(table(each)), end="\n\n")
    stages = staged(traces)
    figures = stage_figures(stages)
    if stages:
        print(terminal(stage_table(figures)), end="\n\n")
    names = [f"{out}_summary.json", f"{out}.png", f"{out}_timeline.json"]
    names += [f"{out}_stages.png"] if stages else []
    try:
        with replacing(names[0]) as handle:
            content = {"ranks": found, **({"stages": figures} if stages else {})}
            handle.write((json.dumps(content, indent=1) + "\n").encode())
        draw(names[1], traces, found)
        if stages:
            draw_stages(names[-1], stages)
        first = min(trace.clock for trace in traces)
        write_chrome(names[2], [e for trace in traces for e in chrome_events(trace, trace.clock - first)])
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror})") from error
    print("written:", *names)


def _add_peak(facts: dict[str, Any]) -> None:
    """Adds the rate of a large matrix product on the threads of this process, by MXNet's own operator or the
    fused one where that is loaded and faster."""
    import mxnet as mx

    from training.utilisation import ROWS, matrix_peak

    dtype = facts["dtype"]
    device = mx.gpu() if mx.context.num_gpus() else mx.cpu()
    products = [] if dtype in ("bfloat16", BFLOAT16X3) else ["mxnet"]
    if device.device_type == "cpu" and hasattr(mx.nd, "bert_dense"):
        products.append("fused")
    facts["peak_gflops"] = matrix_peak(dtype, products, device, _MEASURED) / 1e9
    facts["peak_of"] = f"the best product of {ROWS} x {ROWS} {dtype} matrices in {_MEASURED:g} s"


def _parser(of_traces: bool) -> ScriptParser:
    """Options of this command: for traces, or for a run, whose options are read by the training scripts'."""
    parser = ScriptParser(
        prog="python -m training.profile",
        description="report on traces" if of_traces else _HELP,
        usage=None if of_traces else _USAGE,
    )
    add = parser.add_argument
    if of_traces:
        add("traces", nargs="+", type=path_name, metavar="TRACE", help="a file that --profile has written")
    else:
        add("--steps", type=positive_int, default=5, help="steps to profile (default: 5)")
        add("--warmup", type=count, default=3, help="steps before those (default: 3)")
    add(
        "--out",
        type=path_name,
        help="beginning of the files' names (default: profile, in --ckpt_dir if that is given; of a trace its"
        " own name)",
    )
    add(
        "--peak",
        type=positive,
        metavar="GFLOPS",
        help="what the machine reaches in a large matrix product (default: measured after the steps)",
    )
    return parser


def _looked_at(arguments: Sequence[str]) -> argparse.Namespace:
    """Those options of a run that decide on others, before the training scripts' parser reads all."""
    parser = ScriptParser(add_help=False)
    for name in ("--ckpt_dir", "--data", "--dummy_data_len"):
        parser.add_argument(name)
    parser.add_argument("--max_seq_length", type=positive_int, default=_LENGTH)
    return parser.parse_known_args(arguments)[0]


def _of_all_ranks(paths: Sequence[str]) -> list[str]:
    """One name stands for those of all ranks."""
    if len(paths) > 1:
        return list(paths)
    (path,) = paths
    ends = (each[len(path) + 1 :] for each in glob.glob(f"{glob.escape(path)}.*"))
    ranks = sorted(int(end) for end in ends if end.isdecimal())
    return [path, *(f"{path}.{rank}" for rank in ranks)]


def _check_folder(out: str) -> None:
    if not os.path.isdir(os.path.dirname(out) or "."):
        raise InputError(f"--out {out}: cannot be written: there is no folder {os.path.dirname(out)}")


if __name__ == "__main__":
    sys.exit(exit_code(main))
