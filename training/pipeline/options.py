"""Table of the options for layers over ranks (base.options). Standard library only."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Mapping

from base.command_line import whole
from base.errors import InputError
from base.launchers import BYTEPS, announced_sizes
from base.options import option, taken
from bert.configuration import MOST_LAYERS, REMOVE
from training.pipeline.placement import INTRA_FIRST, PLACEMENTS, check_size
from training.pipeline.split import check_stages, given_split

ONE_F_ONE_B, GPIPE = SCHEDULES = ("1f1b", "gpipe")


def _counts(text: str) -> str:
    """The layers of each stage in one form, so that the same request is the same text."""
    layers = whole(1, MOST_LAYERS)
    return ",".join(str(layers(part.strip())) for part in text.split(","))


@dataclass(frozen=True)
class PipelineConfig:
    """Layers over ranks.

    Attributes:
        stages: ranks that one replica of the model lies on; 1: every rank has all of it.
        split: layers of each stage; None: balanced.
    """

    stages: int = option(
        "processes that share the layers of one model; the number of processes is a multiple of S, and "
        "--batch_size counts for S processes together. For a model that does not fit one process, or between "
        "slow hosts. While a pipeline of S fills and empties, (S - 1) / (M + S - 1) of its time is lost "
        "(M: --accumulate): give M at least 4 S (default: 1, every process has the whole model)",
        whole(1, MOST_LAYERS, "one for each layer of the deepest model"),
        "S",
        1,
        name="pipeline_stages",
    )
    placement: str = option(
        "intra_first: S neighbouring processes, mostly of one host, are a model: activations stay inside "
        "hosts, gradients travel between them. inter_first: neighbouring stages are on different hosts, and "
        "with as many hosts as stages gradients stay inside hosts: faster where a process's gradients are "
        "more than the activations of a step",
        choices=PLACEMENTS,
        default=INTRA_FIRST,
        unset=True,
    )
    schedule: str = option(
        "1f1b: backward as soon as possible, so that stage i of S keeps the activations of S - i "
        "micro-batches at most; gpipe: all forward, then all backward, which keeps those of all M. Both take "
        "as long and give the same result",
        choices=SCHEDULES,
        default=ONE_F_ONE_B,
        name="pipeline_schedule",
        unset=True,
    )
    split: tuple[int, ...] | None = option(
        "transformer layers of each stage, as 6,7,7,4; the first also has the embeddings, the last the "
        "heads, worth about half a layer of BERT-base, and fused operators make the top layer cheap "
        "(default: by counted operations, as the table at the start shows)",
        _counts,
        "N,N,...",
        name="pipeline_split",
    )


def pipeline_config(options: argparse.Namespace, layers: int) -> PipelineConfig:
    """The configuration of a command line, for a model of so many layers.

    Raises:
        InputError: more stages than layers, a split that is not of this model, an option that does nothing
            without stages, moments of another type, float16.
    """
    stages = options.pipeline_stages
    if stages == 1:
        for name in ("placement", "pipeline_schedule", "pipeline_split"):
            if getattr(options, name) is not None:
                raise InputError(
                    f"--{name} is about layers over several processes; give --pipeline_stages 2 or more, or "
                    "leave it out"
                )
        return PipelineConfig()
    if options.padding == REMOVE:
        raise InputError(
            f"--padding {REMOVE} with --pipeline_stages: activations travel between stages as padded "
            "batches; leave it out"
        )
    if options.pretrained:
        raise InputError(
            "--pretrained with --pipeline_stages: published parameters are loaded into a whole model; give "
            "their file to --init_from"
        )
    if options.optimizer_state != "float32":
        raise InputError(
            f"--optimizer_state {options.optimizer_state} with --pipeline_stages: its roundings depend on "
            "the parameters that a process holds, so the number of stages would change them; leave it out"
        )
    if options.shard_states:
        raise InputError(
            "--shard_states with --pipeline_stages: the stages divide the optimizer states already; leave it "
            "out"
        )
    check_dtype(options.dtype)
    check_stages(stages, layers)
    split = None
    if options.pipeline_split is not None:
        split = tuple(map(int, options.pipeline_split.split(",")))
        given_split(split, stages, layers)
    return taken(PipelineConfig, options, split=split)


def check_dtype(dtype: str | None) -> None:
    """Raises InputError for float16, which MXNet has on GPUs only, where no pipeline has been run."""
    if dtype == "float16":
        raise InputError(
            "--pipeline_stages with float16, a GPU's default, has not been tried; give --dtype float32"
        )


def check_launch(stages: int, backend: str, estimates: bool, environ: Mapping[str, str]) -> None:
    """Checks that this launch can have pipelines of so many stages.

    Args:
        backend: of base.launchers.
        estimates: nothing is trained (--estimate); then one process stands for any number.
        environ: the launcher's variables.

    Raises:
        InputError: BytePS, or a number of processes that is no multiple of the stages.
    """
    if stages == 1:
        return
    if backend == BYTEPS:
        raise InputError(
            f"--pipeline_stages {stages}: BytePS has neither groups of ranks nor messages between two ranks; "
            "start run_pretraining_hvd.py with the same options"
        )
    size = max(announced_sizes(environ).values(), default=0)
    if size or not estimates:
        check_size(size or 1, stages)


def decay_schedule(text: str) -> str:
    """Reads --schedule, the learning rate's, and names the other one where a pipeline's is meant."""
    if text in SCHEDULES:
        raise argparse.ArgumentTypeError(
            f"{text!r} is a schedule of pipelines: give --pipeline_schedule {text}; this one is the learning "
            "rate's"
        )
    return text
