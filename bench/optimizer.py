"""Time of an update of all weights: the fused operators against MXNet's own and PyTorch's fused AdamW, and
against plain loops that move the same bytes.

    python -m bench.optimizer [--model bert_12_768_12] [--repeats 9] [--torch_python PATH] [--json FILE]
    python -m bench.optimizer --quick

Each repeat measures every row once, one after the other; ratios are taken within a repeat, to the row that
the last column names. The table shows medians, and the smallest and largest of all repeats: on a machine with
other work only the smallest says what the memory allows. GB/s counts the bytes that must pass between memory
and processor if no cache keeps anything: 28 for an element with AdamW (weight, gradient, mean and var in, all
but the gradient out), 40 with LAMB, which has to read weight, mean and var again, and 4 for the norm; with
moments in bfloat16 20 and 28. "copied" reads and writes the arrays of "LAMB + norm" as that does, and
computes nothing (bench/optimizer_copy.py): the goal is 1.15 times its time. PyTorch is looked for where
bench/step.py looks, and left out where there is none.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any, Callable, Sequence

from base.command_line import OptionParser, path_name, positive_int
from base.errors import InputError
from bench.contestants import NO_TORCH, find_torch_python
from bench.quick import NOTICE, add_quick, settle, write_figures
from bert.configuration import named_config
from training.entry import exit_code

VOCABULARY = 30522
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAMB, NORM = "MXNet, LAMB", "MXNet, norm"
COPIED, COPIED_LOW = "copied, float32", "copied, bfloat16"
# row -> bytes an element, the row it is compared with
ROWS = {
    LAMB: (40, LAMB),
    "fused, LAMB": (40, LAMB),
    "fused, AdamW": (28, LAMB),
    "PyTorch, AdamW": (28, LAMB),
    "fused, LAMB, bfloat16": (28, "fused, LAMB"),
    "fused, AdamW, bfloat16": (20, "fused, AdamW"),
    NORM: (4, NORM),
    "fused, norm": (4, NORM),
    COPIED: (44, COPIED),
    "fused, LAMB + norm": (44, COPIED),
    COPIED_LOW: (32, COPIED_LOW),
    "fused, LAMB + norm, bfloat16": (32, COPIED_LOW),
}


class TorchWorker:
    """PyTorch's updates, in a process of its own that sleeps between them."""

    def __init__(self, python: str, shapes: Sequence[Sequence[int]]):
        self._process = subprocess.Popen(
            [python, "-m", "bench.optimizer_torch"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ask(json.dumps(shapes))

    def _ask(self, line: str) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # it has died, which shows when it is to answer
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def seconds(self) -> float:
        """One more update's. RuntimeError where the worker has died."""
        assert self._process.stdout
        self._ask("")
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the worker ended with {self._process.wait()}")
        return float(answer)

    def close(self) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # what was still to be written to one that has died
            self._process.stdin.close()
        self._process.wait()


def timed(work: Callable[[], Any]) -> Callable[[], float]:
    import mxnet as mx

    def seconds() -> float:
        mx.nd.waitall()
        begun = time.perf_counter()
        work()
        mx.nd.waitall()
        return time.perf_counter() - begun

    return seconds


def contestants(weights: dict[str, Any], threads: int) -> dict[str, Callable[[], float]]:
    """Rows of this process. All update the same weights, each with moments of its own."""
    import mxnet as mx

    from bench.optimizer_copy import SameBytes
    from bert.operators import load_operators
    from training.optimizer.moments import MomentType
    from training.optimizer.optimizer import Optimizer, global_norm

    gradients = [mx.nd.random.normal(0, 1e-3, weight.shape) for weight in weights.values()]

    def optimizer(kind: str, native: bool = True, moments: str = "float32") -> Optimizer:
        return Optimizer(
            kind, list(weights), list(weights.values()), native=native, moments=MomentType(moments)
        )

    def update(made: Optimizer) -> Callable[[], float]:
        return timed(lambda: made.step(gradients, 1e-4))

    def whole(made: Optimizer) -> Callable[[], float]:
        return timed(lambda: made.step(gradients, 1e-4, 1e-9 * global_norm(gradients, native=True)))

    rows = {LAMB: update(optimizer("lamb", native=False)), NORM: timed(lambda: global_norm(gradients))}
    if load_operators():
        rows["fused, norm"] = timed(lambda: global_norm(gradients, native=True))
        for ending, copied, moments in (("", COPIED, "float32"), (", bfloat16", COPIED_LOW, "bfloat16")):
            rows[f"fused, AdamW{ending}"] = update(optimizer("adamw", moments=moments))
            lamb = optimizer("lamb", moments=moments)
            states = list(lamb.state_arrays().values())  # mean, var, mean, var, ...
            rows[f"fused, LAMB{ending}"] = update(lamb)
            rows[copied] = SameBytes(
                list(zip(weights.values(), gradients, states[::2], states[1::2])), threads
            ).seconds
            rows[f"fused, LAMB + norm{ending}"] = whole(lamb)
    return rows


def summarize(repeats: Sequence[dict[str, float]], elements: int) -> list[dict[str, Any]]:
    rows = []
    for name, (bytes_each, base) in ROWS.items():
        seconds = [repeat[name] for repeat in repeats if name in repeat]
        if not seconds:
            continue
        rows.append(
            {
                "name": name,
                "seconds": statistics.median(seconds),
                "least": min(seconds),
                "most": max(seconds),
                "GB/s": bytes_each * elements / min(seconds) / 1e9,
                "ratio": statistics.median(repeat[name] / repeat[base] for repeat in repeats),
                "of": base,
            }
        )
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    width = max(len(row["name"]) for row in rows)
    lines = [f"{'':{width}} {'ms':>6}  {'least to most':>15}  {'GB/s at best':>12}  ratio"]
    for row in rows:
        spread = f"{1e3 * row['least']:.0f} to {1e3 * row['most']:.0f}"
        lines.append(
            f"{row['name']:{width}} {1e3 * row['seconds']:>6.0f}  {spread:>15}  {row['GB/s']:>12.1f}"
            f"  {row['ratio']:.2f} of {row['of']}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OptionParser(
        prog="python -m bench.optimizer",
        description="Measure the update of all weights on the CPU.",
        allow_abbrev=False,
    )
    parser.add_argument("--model", help="default: bert_12_768_12")
    parser.add_argument("--repeats", type=positive_int, metavar="N", help="default: 9")
    parser.add_argument(
        "--torch_python", type=path_name, metavar="PATH", help="a Python with PyTorch, to compare with"
    )
    parser.add_argument("--json", type=path_name, metavar="FILE", help="write all figures there")
    add_quick(parser, "bert_2_128_2, 3 repeats")
    options = parser.parse_args(arguments)
    settle(options, {"model": "bert_12_768_12", "repeats": 9}, {"model": "bert_2_128_2", "repeats": 3})
    try:
        options.torch_python = find_torch_python(options.torch_python, os.environ)
        config = named_config(options.model)
    except (ValueError, InputError) as error:
        parser.error(str(error))
    os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))  # before mxnet is imported

    import mxnet as mx

    from bert.model import build_model, initialize, trainable
    from bert.operators import load_operators

    model = build_model(config, VOCABULARY)
    initialize(model, mx.cpu(), "float32", seed=0)
    weights = {name: parameter.data() for name, parameter in trainable(model).items()}
    rows = contestants(weights, int(os.environ["OMP_NUM_THREADS"]))
    shapes = [weight.shape for weight in weights.values()]
    torch = TorchWorker(options.torch_python, shapes) if options.torch_python else None
    if torch:
        rows["PyTorch, AdamW"] = torch.seconds
    try:
        for seconds in rows.values():  # memory is first touched, threads start
            seconds()
        repeats = [{name: seconds() for name, seconds in rows.items()} for _ in range(options.repeats)]
    except RuntimeError as error:
        print(f"bench.optimizer: {options.torch_python}: {error}", file=sys.stderr)
        return 2
    finally:
        if torch:
            torch.close()
    elements = sum(weight.size for weight in weights.values())
    summary = summarize(repeats, elements)
    print(
        f"{options.model}: {len(shapes)} tensors, {elements / 1e6:.1f} M elements,"
        f" {os.environ['OMP_NUM_THREADS']} threads"
    )
    print(table(summary))
    if not load_operators():
        print("the fused operators were left out: they are not built here (make setup builds them)")
    if torch is None:
        print(NO_TORCH)
    if options.quick:
        print(NOTICE)
    if options.json:
        write_figures(options.json, {"quick": options.quick, "rows": summary, "repeats": repeats})
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
