"""`python compare.py --project`: throughput and efficiency from 1 to 1024 GPUs, predicted by a small model.

    python compare.py --project
    python compare.py --project --model bert_12_768_12 --batch_size 128 --strategies flat_ring
    python compare.py --project --servers 16 --server_placement separate --inter_gbps 25

Under --output: projection.md, projection.json, projection.png, projection_validation.png. No MXNet, seconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from base.command_line import not_negative, positive, positive_int, share
from base.errors import InputError
from comparison.projection.clusters import CLUSTERS
from comparison.projection.model import project_all
from comparison.projection.plan import LENGTH, MODEL, SEQUENCES, STRATEGIES, plan_of
from comparison.projection.report import write_projection
from comparison.projection.strategies import COLOCATED, PLACEMENTS
from comparison.projection.workload import ELEMENT_BYTES, VOCABULARY

OUTPUT = "runs/projection"
# Options that a run of the training scripts has as well: where compare.py has one already, it is that one.
SHARED: dict[str, dict[str, Any]] = {
    "--model": {"metavar": "NAME", "help": f"bert_LAYERS_UNITS_HEADS (for --project: {MODEL})"},
    "--max_seq_length": {"type": positive_int, "metavar": "L", "help": f"tokens of a sequence ({LENGTH})"},
    "--accumulate": {"type": positive_int, "metavar": "N", "help": "passes added up for a step (1)"},
    "--batch_size": {"type": positive_int, "metavar": "B", "help": f"sequences a GPU and pass ({SEQUENCES})"},
    "--vocab_size": {
        "type": positive_int,
        "metavar": "V",
        "help": f"tokens in the vocabulary ({VOCABULARY})",
    },
    "--output": {"metavar": "DIR", "help": f"where the results go (for --project: {OUTPUT})"},
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of --project. To be called after those of the comparison are there (SHARED)."""
    group = parser.add_argument_group("projection (--project); values in parentheses are the defaults")
    add = group.add_argument
    add("--gpus", type=positive_int, nargs="+", metavar="N", help="numbers of GPUs (1 2 4 8 16 ... 1024)")
    add("--strategies", nargs="+", choices=STRATEGIES, help="which ways to average gradients (all)")
    add("--servers", type=positive_int, metavar="K", help="of BytePS (as many as hosts)")
    add(
        "--server_placement",
        choices=PLACEMENTS,
        help=f"on the worker hosts, on machines of their own, or best divided between both ({COLOCATED})",
    )
    add("--cluster", choices=sorted(CLUSTERS), help="whose parameters hold unless replaced (p3dn)")
    add("--gpus_per_host", type=positive_int, metavar="G", help="(p3dn: 8)")
    add("--intra_gbps", type=positive, metavar="X", help="of a ring inside a host, Gbit/s (p3dn: 160 to 960)")
    add("--inter_gbps", type=positive, metavar="X", help="of a host's network, Gbit/s (p3dn: 100)")
    add("--network_efficiency", type=share, metavar="X", help="the part of it that is reached (p3dn: 0.56)")
    add("--intra_latency_us", type=not_negative, metavar="X", help="of a ring's step in a host (p3dn: 3.4)")
    add("--inter_latency_us", type=not_negative, metavar="X", help="of one between hosts (p3dn: 9.6)")
    add("--fusion_mb", type=not_negative, metavar="X", help="MiB that Horovod sends together (p3dn: 128)")
    add("--cycle_ms", type=not_negative, metavar="X", help="between two looks of Horovod's (p3dn: 1)")
    add("--partition_bytes", type=positive_int, metavar="N", help="of BytePS's pieces (p3dn: 4096000)")
    add("--compute_s", type=positive, metavar="S", help="forward and backward of one pass on one GPU")
    add("--optimizer_s", type=not_negative, metavar="S", help="the update (from the GPU's memory bandwidth)")
    add("--measured", metavar="FILE", help="a comparison's report.json: compute time of this machine")
    add("--gradient_dtype", choices=sorted(ELEMENT_BYTES), help="on their way (float16; --measured: float32)")
    add(
        "--overlap",
        choices=("backward", "none"),
        help="when gradients travel: during it (backward), or after",
    )
    for flag, settings in SHARED.items():
        try:
            add(flag, **settings)
        except argparse.ArgumentError:  # the comparison has it
            continue


def project(options: argparse.Namespace) -> int:
    """Projects, prints the tables and writes the files; 0. InputError before anything is written."""
    passed_on = getattr(options, "script_args", None)
    if passed_on:
        raise InputError(f"{passed_on[0]} after --: --project runs no training script")
    plan = plan_of(options)
    directory = Path(options.output or OUTPUT).expanduser()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {directory}: {error.strerror}") from error
    found = project_all(plan.workload, plan.strategies, plan.cluster, plan.gpus)
    try:
        print(write_projection(directory, plan, found))
    except OSError as error:
        raise InputError(f"--output {directory}: {error.strerror}") from error
    return 0
