"""The command line of compare.py, checked as far as it can be without looking at the data."""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from typing import Any, Mapping, Sequence

from base.command_line import OptionParser, count, positive, positive_int
from base.errors import InputError
from bert.configuration import parse_model
from comparison.launching.backends import BYTEPS, BYTEPS_LOCAL, Backend, Cluster, launch_words
from comparison.launching.devices import count_gpus
from comparison.launching.read_run import Steps
from comparison.messages import command as messages
from comparison.projection import command as project_command
from comparison.settings import Setting, all_settings

OUTPUT = "runs/comparison"
DTYPES = ("float32", "bfloat16", "float16")
FEWEST_REPEATS = 5  # that a verdict takes
PROFILES = 3  # the median of so many leaves one out that has stalled
# The small model of `make pretrain`, for the embedded text.
EMBEDDED_MODEL, EMBEDDED_LENGTH, EMBEDDED_BATCHES = "bert_2_128_2", 32, (512, 1024)

_EXIT_CODES = """exit code: 0 when every setting has its figures or has run out of memory, 1 when a backend
was wrong or failed, 2 for bad input, 130 after Ctrl-C and 143 after SIGTERM (the report is then partial, and
the same command continues)."""


def parse_options(
    arguments: Sequence[str], backends: Mapping[str, Backend], description: str | None = None
) -> argparse.Namespace:
    """The options, with what follows `--` as `script_args`.

    What was left out of the axes is filled in for this machine, and `gpus` says how many it has, except with
    --project. `cluster` is what --hostfile says, or None.

    Raises:
        InputError: an unknown option, a value out of its range, options that exclude each other.
    """
    own, script_args = list(arguments), []
    if "--" in own:
        cut = own.index("--")
        own, script_args = own[:cut], own[cut + 1 :]
    parser = _parser(backends, description)
    ours = vars(parser.parse_args([]))
    messages.add_options(parser)
    of_messages = _added(parser, ours)
    project_command.add_options(parser)
    of_projection = _added(parser, {**ours, **of_messages})
    options = parser.parse_args(own)
    options.script_args = script_args
    if options.comm_only and options.project:
        raise InputError("--comm_only and --project exclude each other")
    if not options.comm_only:
        _refuse(options, of_messages, "--comm_only")
    if not options.project:
        _refuse(options, of_projection, "--project")
    if options.project:
        return options
    if script_args and options.comm_only:
        raise InputError(f"{script_args[0]} after --: --comm_only runs no training script")
    options.output = os.path.expanduser(options.output or OUTPUT)
    _check_axes(options, backends)
    return options


def steps_of(options: argparse.Namespace) -> Steps:
    return Steps(options.steps, options.warmup_steps, options.log_interval)


def settings_of(options: argparse.Namespace) -> list[Setting]:
    return all_settings(options.backends, options.workers, options.dtypes, options.batch_sizes)


def check_training(options: argparse.Namespace, backends: Mapping[str, Backend]) -> None:
    """What only the comparison of training runs needs.

    Raises:
        InputError: see `parse_options`.
    """
    steps = steps_of(options)
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
    with tempfile.TemporaryDirectory() as directory:
        for setting in settings_of(options):
            try:
                launch_words(backends[setting.backend], setting.workers, options.cluster, directory)
            except InputError as error:
                raise InputError(f"--backends {setting.backend}: {error}") from error
    if options.no_profile and options.profiles != PROFILES:
        raise InputError(f"--profiles {options.profiles} and --no_profile exclude each other; leave one out")
    if not options.gpus and "float16" in options.dtypes:
        raise InputError(
            "--dtypes float16: MXNet multiplies float16 matrices on GPUs only; there are none here"
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
    _add_axes(
        parser.add_argument_group("what is compared: every combination of these").add_argument, backends
    )
    text = "what is trained; all other options of the training scripts can be given after --"
    add = parser.add_argument_group("training", text).add_argument
    add("--model", metavar="NAME", help=f"bert_LAYERS_UNITS_HEADS (default: {EMBEDDED_MODEL})")
    add("--data", help="as the training scripts take it (default: the English that every CPython carries)")
    add("--raw", action="store_true", help="the data is text")
    add("--vocab", metavar="FILE", help="a BERT vocab.txt")
    add("--max_seq_length", type=positive_int, metavar="L", help="(default: without --data 32)")
    add("--use_avg_len", action="store_true", help="batch sizes count tokens (always so without --data)")
    add("--accumulate", type=positive_int, metavar="N", help="micro-batches a step (default 1)")
    _add_measurement(parser.add_argument_group("measurement").add_argument)
    add = parser.add_argument_group("result").add_argument
    add(
        "--output",
        metavar="DIR",
        help=f"for launches and report (default: {OUTPUT}; continues what is there)",
    )
    add("--confidence", type=float, default=0.95, help="of all verdicts of a report together (default 0.95)")
    add("--price_per_hour", type=positive, metavar="X", help="of an instance: adds what both stages cost")
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
        help=f"of {keys} (default: hvd_mpi hvd_gloo byteps; on GPUs without --hostfile byteps_local as the"
        " last)",
    )
    add(
        "--workers",
        nargs="+",
        type=positive_int,
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
        type=positive_int,
        default=FEWEST_REPEATS,
        metavar="N",
        help="launches of every setting, in turns (default 5; with fewer there are no verdicts)",
    )
    add("--steps", type=positive_int, default=60, metavar="N", help="of a launch (default 60)")
    add("--warmup_steps", type=count, default=20, metavar="N", help="the first ones (default 20)")
    add("--log_interval", type=positive_int, default=5, metavar="N", help="a sample's steps (default 5)")
    add("--seed", type=count, default=0, help="of the training and of the order of launches (default 0)")
    add(
        "--hostfile",
        metavar="FILE",
        help="Open MPI host file; the first slots are taken; start on the first host; the output directory"
        " is on all hosts (default: this machine)",
    )
    add(
        "--time_limit",
        type=positive,
        default=600.0,
        metavar="SECONDS",
        help="for a launch; one that takes longer has failed (default 600)",
    )
    add(
        "--profiles",
        type=positive_int,
        default=PROFILES,
        metavar="N",
        help="launches of every setting with --profile, for the breakdown of a step (default 3)",
    )
    add("--no_profile", action="store_true", help="none of them: no breakdown of the step")
    add("--retry_failed", action="store_true", help="run launches again that have failed in an earlier call")


def _added(parser: argparse.ArgumentParser, before: Mapping[str, Any]) -> dict[str, Any]:
    """Options that have come to the parser, with their defaults."""
    return {name: value for name, value in vars(parser.parse_args([])).items() if name not in before}


def _refuse(options: argparse.Namespace, foreign: Mapping[str, Any], mode: str) -> None:
    for name, default in foreign.items():
        if getattr(options, name) != default:
            hint = "; here it is --batch_sizes" if name == "batch_size" else ""
            raise InputError(f"--{name}: is an option of {mode}{hint}")


def _check_axes(options: argparse.Namespace, backends: Mapping[str, Backend]) -> None:
    options.cluster = Cluster.read(options.hostfile) if options.hostfile else None
    options.gpus = count_gpus()
    if options.backends is None:
        local = bool(options.gpus) and options.cluster is None
        options.backends = ["hvd_mpi", "hvd_gloo", BYTEPS_LOCAL if local else "byteps"]
    if options.workers is None:
        most = options.cluster.slots if options.cluster else options.gpus or 2
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
    for key in options.backends:
        if key not in backends:
            raise InputError(f"--backends {key}: choose from {', '.join(backends)}")
    for flag in ("backends", "workers", "dtypes", "batch_sizes"):
        values = getattr(options, flag)
        for value in values:
            if values.count(value) > 1:
                raise InputError(f"--{flag}: {value} is named twice")
    if options.cluster and max(options.workers) > options.cluster.slots:
        raise InputError(
            f"--workers {max(options.workers)}: {options.hostfile} has {options.cluster.slots} slots"
        )
    if options.gpus and options.cluster is None:
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
