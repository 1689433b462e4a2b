"""The command line of compare.py, checked as far as it can be without looking at the data."""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from typing import Any, Mapping, Sequence, Union

from base.command_line import (
    OptionParser,
    count,
    num_processes,
    path_name,
    path_names,
    positive,
    positive_int,
    seconds,
    split_at_dashes,
    whole,
    within,
)
from base.errors import InputError
from bert.configuration import parse_model
from comparison.backends import (
    BYTEPS,
    BYTEPS_LOCAL,
    Backend,
    Cluster,
    count_gpus,
    launch_words,
)
from comparison.campaign import CampaignOptions, all_settings
from comparison.messages import command as messages
from comparison.messages.command import MessagesOptions
from comparison.projection import command as projection
from comparison.projection.command import ProjectionOptions
from comparison.runs.command import RunsOptions
from comparison.runs.launches import EMBEDDED_BATCHES, EMBEDDED_MODEL, Trained
from comparison.runs.record import Steps
from comparison.verdicts import FEWEST_REPEATS
from data.options import MAX_POSITIONS
from training.options import expand_options
from training.pairs import accumulation

OUTPUT = "runs/comparison"
DTYPES = ("float32", "bfloat16", "float16")
PROFILES = 3  # the median of so many leaves one out that has stalled

Options = Union[RunsOptions, MessagesOptions, ProjectionOptions]

_EXIT_CODES = """exit code: 0 when every setting has its figures or has run out of memory, 1 when a backend
was wrong or failed, 2 for bad input, 130 after Ctrl-C and 143 after SIGTERM (the report is then partial, and
the same command continues)."""


def parse_options(
    arguments: Sequence[str], backends: Mapping[str, Backend], description: str | None = None
) -> Options:
    """The options of the comparison that the arguments choose.

    The axes that were left out have values for this machine.

    Args:
        backends: those that --backends can name.

    Raises:
        InputError: an unknown option, a value out of its range, options that exclude each other.
    """
    own, script_args = split_at_dashes(arguments)
    parser = _parser(backends, description)
    ours = vars(parser.parse_args([]))
    messages.add_options(parser)
    of_messages = _added(parser, ours)
    projection.add_options(parser)
    of_projection = _added(parser, {**ours, **of_messages})
    options = parser.parse_args(own)
    if options.comm_only and options.project:
        raise InputError("--comm_only and --project exclude each other")
    if not options.comm_only:
        _reject(options, of_messages, "--comm_only")
    if not options.project:
        _reject(options, of_projection, "--project")
    if script_args and (options.comm_only or options.project):
        mode = "--comm_only" if options.comm_only else "--project"
        raise InputError(f"{script_args[0]} after --: {mode} runs no training script")
    if options.project:
        return projection.options_of(options)
    options.output = os.path.expanduser(options.output or OUTPUT)
    options.script_args = expand_options(script_args)
    cluster = Cluster.read(options.hostfile) if options.hostfile else None
    options.gpus = count_gpus()
    _fill_axes(options, cluster)
    _check_axes(options, backends, cluster)
    campaign = CampaignOptions(
        output=options.output,
        backends={key: backends[key] for key in options.backends},
        workers=tuple(options.workers),
        repeats=options.repeats,
        seed=options.seed,
        cluster=cluster,
        gpus=options.gpus,
        time_limit=options.time_limit,
        confidence=options.confidence,
        retry_failed=options.retry_failed,
        command=("python", "compare.py", *arguments),
        given=dict(vars(options)),
    )
    return messages.options_of(options, campaign) if options.comm_only else _of_runs(options, campaign)


def _of_runs(options: argparse.Namespace, campaign: CampaignOptions) -> RunsOptions:
    """Raises InputError for what only the comparison of training runs needs."""
    steps = Steps(options.steps, options.warmup_steps, options.log_interval)
    for flag in ("steps", "warmup_steps"):
        if getattr(options, flag) % steps.interval:
            raise InputError(
                f"--{flag} {getattr(options, flag)}: must be a multiple of --log_interval {steps.interval}"
            )
    if steps.total < steps.warm_up + 3 * steps.interval:
        raise InputError(
            f"--steps {steps.total}: after {steps.warm_up} steps of warm-up there must be 3 intervals"
            f" of {steps.interval}; give {steps.warm_up + 3 * steps.interval} or more"
        )
    settings = all_settings(options.backends, options.workers, options.dtypes, options.batch_sizes)
    with tempfile.TemporaryDirectory() as directory:
        for setting in settings:
            backend = campaign.backends[setting.backend]
            try:
                launch_words(backend, setting.workers, campaign.cluster, directory)
            except InputError as error:
                raise InputError(f"--backends {setting.backend}: {error}") from error
    if options.no_profile and options.profiles != PROFILES:
        raise InputError(f"--profiles {options.profiles} and --no_profile exclude each other; leave one out")
    if not options.gpus and "float16" in options.dtypes:
        raise InputError(
            "--dtypes float16: MXNet multiplies float16 matrices on GPUs only; there are none here"
        )
    return RunsOptions(
        campaign=campaign,
        settings=tuple(settings),
        dtypes=tuple(options.dtypes),
        batch_sizes=tuple(options.batch_sizes),
        steps=steps,
        profiles=0 if options.no_profile else options.profiles,
        trained=Trained(
            model=options.model,
            data=options.data,
            raw=options.raw,
            vocab=options.vocab,
            max_seq_length=options.max_seq_length,
            use_avg_len=options.use_avg_len,
            accumulate=options.accumulate,
            script_args=tuple(options.script_args),
        ),
        price_per_hour=options.price_per_hour,
        gpus_per_instance=options.gpus_per_instance,
    )


def _parser(backends: Mapping[str, Backend], description: str | None) -> argparse.ArgumentParser:
    parser = OptionParser(
        prog="compare.py",
        usage="%(prog)s [options] [-- options of the training scripts]",
        description=description,
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_axes(parser.add_argument_group("axes: every combination is compared").add_argument, backends)
    text = "all other options of the training scripts can be given after --"
    add = parser.add_argument_group("training", text).add_argument
    add("--model", metavar="NAME", help=f"bert_LAYERS_UNITS_HEADS (default: {EMBEDDED_MODEL})")
    add(
        "--data",
        type=path_names,
        help="as for the training scripts (default: the English text in every CPython)",
    )
    add("--raw", action="store_true", help="data is text")
    add("--vocab", type=path_name, metavar="FILE", help="a BERT vocab.txt")
    add(
        "--max_seq_length",
        type=whole(1, MAX_POSITIONS, "the positions that BERT has"),
        metavar="L",
        help="(default: without --data 32)",
    )
    add("--use_avg_len", action="store_true", help="batch sizes count tokens (always so without --data)")
    add("--accumulate", type=accumulation, metavar="N", help="micro-batches a step (default 1)")
    _add_measurement(parser.add_argument_group("measurement").add_argument)
    add = parser.add_argument_group("result").add_argument
    add(
        "--output",
        type=path_name,
        metavar="DIR",
        help=f"directory of launches and report (default: {OUTPUT}); a comparison in it continues",
    )
    add(
        "--confidence",
        type=within(0.5, 1),
        default=0.95,
        help="confidence of all verdicts of a report together (default 0.95)",
    )
    add(
        "--price_per_hour",
        type=positive,
        metavar="X",
        help="price of an instance: adds the cost of both stages",
    )
    add("--gpus_per_instance", type=positive_int, metavar="N", help="workers on an instance (default 1)")
    add = parser.add_argument_group("instead of the comparison of training runs").add_argument
    add("--comm_only", action="store_true", help="communication alone, by message size")
    add("--project", action="store_true", help="predict throughput and efficiency on up to 1024 GPUs")
    return parser


def _add_axes(add: Any, backends: Mapping[str, Backend]) -> None:
    keys = ", ".join(backends)
    add(
        "--backends",
        nargs="+",
        metavar="NAME",
        help=f"from {keys} (default: hvd_mpi hvd_gloo byteps; on GPUs without --hostfile byteps_local in"
        " place of byteps)",
    )
    add(
        "--workers",
        nargs="+",
        type=num_processes,
        metavar="N",
        help="processes, on GPU machines as many as GPUs (default: 1 2; on GPUs 1 and all)",
    )
    add(
        "--dtypes",
        nargs="+",
        choices=DTYPES,
        metavar="NAME",
        help="(default: float32 bfloat16; on GPUs float32 float16)",
    )
    add(
        "--batch_sizes",
        nargs="+",
        type=positive_int,
        metavar="B",
        help="--batch_size of the training scripts, for a worker (default: without --data 512 1024 tokens)",
    )


def _add_measurement(add: Any) -> None:
    add(
        "--repeats",
        type=whole(1, 1000, "more are a slip of the pen"),
        default=FEWEST_REPEATS,
        metavar="N",
        help="launches of every setting, in turns (default 5; with fewer there are no verdicts)",
    )
    add("--steps", type=positive_int, default=60, metavar="N", help="steps of a launch (default 60)")
    add(
        "--warmup_steps",
        type=count,
        default=20,
        metavar="N",
        help="steps without figures at its start (default 20)",
    )
    add("--log_interval", type=positive_int, default=5, metavar="N", help="steps of a sample (default 5)")
    add("--seed", type=count, default=0, help="seed of the training and of the order of launches (default 0)")
    add(
        "--hostfile",
        type=path_name,
        metavar="FILE",
        help="Open MPI host file; the first slots are taken; start on the first host; the output directory"
        " is on all hosts (default: this machine)",
    )
    add(
        "--time_limit",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="limit of a launch; one that takes longer has failed (default 600)",
    )
    add(
        "--profiles",
        type=whole(1, 1000, "more are a slip of the pen"),
        default=PROFILES,
        metavar="N",
        help="launches of every setting with --profile, for the breakdown of a step (default 3)",
    )
    add("--no_profile", action="store_true", help="no profiled launches, no breakdown of the step")
    add("--retry_failed", action="store_true", help="repeat launches that failed in an earlier call")


def _added(parser: argparse.ArgumentParser, before: Mapping[str, Any]) -> dict[str, Any]:
    """Options that have come to the parser, with their defaults."""
    return {name: value for name, value in vars(parser.parse_args([])).items() if name not in before}


def _reject(options: argparse.Namespace, foreign: Mapping[str, Any], mode: str) -> None:
    for name, default in foreign.items():
        if getattr(options, name) != default:
            hint = "; here it is --batch_sizes" if name == "batch_size" else ""
            raise InputError(f"--{name}: is an option of {mode}{hint}")


def _fill_axes(options: argparse.Namespace, cluster: Cluster | None) -> None:
    """Gives the axes that were left out their values on this machine."""
    if options.backends is None:
        local = bool(options.gpus) and cluster is None
        options.backends = ["hvd_mpi", "hvd_gloo", BYTEPS_LOCAL if local else "byteps"]
    if options.workers is None:
        most = cluster.slots if cluster else options.gpus or 2
        options.workers = sorted({1, most})
    if options.dtypes is None:
        options.dtypes = ["float32", "float16" if options.gpus else "bfloat16"]
    if options.batch_sizes is None:
        random = any(word.startswith("--dummy_data_len") for word in options.script_args)
        if (options.data or random) and not options.comm_only:
            raise InputError(
                "--batch_sizes: needed with --data and --dummy_data_len; for example --batch_sizes 1024 2048"
            )
        options.batch_sizes = list(EMBEDDED_BATCHES)


def _check_axes(
    options: argparse.Namespace, backends: Mapping[str, Backend], cluster: Cluster | None
) -> None:
    for key in options.backends:
        if key not in backends:
            raise InputError(f"--backends {key}: choose from {', '.join(backends)}")
    for flag in ("backends", "workers", "dtypes", "batch_sizes"):
        values = getattr(options, flag)
        for value in values:
            if values.count(value) > 1:
                raise InputError(f"--{flag}: {value} is named twice")
    if cluster and max(options.workers) > cluster.slots:
        raise InputError(f"--workers {max(options.workers)}: {options.hostfile} has {cluster.slots} slots")
    if options.gpus and cluster is None:
        _check_gpus(options, backends)
    if not (math.isfinite(options.confidence) and 0.5 <= options.confidence < 1):
        raise InputError(f"--confidence {options.confidence:g}: must be at least 0.5 and below 1")
    if options.model:
        parse_model(options.model)


def _check_gpus(options: argparse.Namespace, backends: Mapping[str, Backend]) -> None:
    """The workers on the GPUs of this machine."""
    for key in options.backends:
        if backends[key].launcher == BYTEPS and max(options.workers) > 1:
            raise InputError(
                f"--backends {key}: all workers of this machine would take its first GPU; use"
                " byteps_local, one worker with a rank for each GPU"
            )
    if max(options.workers) > options.gpus:
        raise InputError(f"--workers {max(options.workers)}: there are {options.gpus} GPUs here")
