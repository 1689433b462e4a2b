"""The command line of compare.py, checked as far as it can be without looking at the data: every option is a
field of what the comparisons take."""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence, Union

from base.command_line import (
    ScriptParser,
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
from base.options import Table, add_options, flag, option, options_in, taken
from bert.configuration import parse_model
from comparison.backends import BACKENDS, BYTEPS, BYTEPS_LOCAL, Backend, Cluster, count_gpus, launch_words
from comparison.emulation.plan import OfEmulation
from comparison.emulation.plan import Setting as EmulatedSetting
from comparison.emulation.plan import settings_of as emulated_settings
from comparison.messages.plan import Cell, Message, OfMessages, parse_messages
from comparison.projection.command import ProjectionOptions
from comparison.settings import Setting, all_settings
from comparison.verdicts import FEWEST_REPEATS
from data.options import MAX_POSITIONS
from hosts.hostfile import read_host_lines
from training.config import accumulation
from training.options import expand_options

OUTPUT = "runs/comparison"
DTYPES = ("float32", "bfloat16", "float16")
PROFILES = 3  # the median of so many leaves one out that has stalled
# The small model of `make pretrain`, for the embedded text.
EMBEDDED_MODEL, EMBEDDED_LENGTH, EMBEDDED_BATCHES = "bert_2_128_2", 32, (512, 1024)

_EXIT_CODES = """exit code, also in the report's JSON ("outcome"): 0 when every setting has its figures or has
run out of memory, 1 when a backend was wrong or failed, or by --fail_if_slower, 2 for bad input, without a
report, 130 after Ctrl-C and 143 after SIGTERM: the report is then partial, and the same command continues."""

_repetitions = whole(1, 1000, "more are a slip of the pen")


def derived() -> Any:
    """A field of a configuration that follows from options; whoever makes the configuration gives it."""
    return field(default=None)


@dataclass(frozen=True)
class Axes:
    """Every combination is compared; those that were left out have values for this machine."""

    backends: Mapping[str, Backend] = option(
        f"from {', '.join(BACKENDS)} (default: hvd_mpi hvd_gloo byteps; on GPUs without --hostfile"
        " byteps_local in place of byteps)",
        nargs="+", metavar="NAME",
    )  # fmt: skip
    workers: tuple[int, ...] = option(
        "processes, on GPU machines as many as GPUs (default: 1 2; on GPUs 1 and all)",
        num_processes, "N", nargs="+",
    )  # fmt: skip
    dtypes: tuple[str, ...] = option(
        "(default: float32 bfloat16; on GPUs float32 float16)", metavar="NAME", nargs="+", choices=DTYPES
    )
    batch_sizes: tuple[int, ...] = option(
        "--batch_size of the training scripts, for a worker (default: without --data 512 1024 tokens)",
        positive_int, "B", nargs="+",
    )  # fmt: skip


@dataclass(frozen=True)
class Trained:
    """Model, data and batches; None and False: left out."""

    model: str | None = option(f"bert_LAYERS_UNITS_HEADS (default: {EMBEDDED_MODEL})", metavar="NAME")
    data: str | None = option(
        "as for the training scripts (default: the English text in every CPython)", path_names
    )
    raw: bool = flag("data is text")
    vocab: str | None = option("a BERT vocab.txt", path_name, "FILE")
    max_seq_length: int | None = option(
        "(default: without --data 32)", whole(1, MAX_POSITIONS, "the positions that BERT has"), "L"
    )
    use_avg_len: bool = flag("batch sizes count tokens (always so without --data)")
    accumulate: int | None = option("micro-batches a step (default 1)", accumulation, "N")


@dataclass(frozen=True)
class Measurement:
    """Launches and their steps."""

    repeats: int = option(
        "launches of every setting, in turns (default 5; with fewer there are no verdicts)",
        _repetitions, "N", default=FEWEST_REPEATS,
    )  # fmt: skip
    steps: int = option("steps of a launch (default 60)", positive_int, "N", default=60)
    warmup_steps: int = option("steps without figures at its start (default 20)", count, "N", default=20)
    log_interval: int = option("steps of a sample (default 5)", positive_int, "N", default=5)
    seed: int = option("seed of the training and of the order of launches (default 0)", count, default=0)
    hostfile: str | None = option(
        "Open MPI host file; the first slots are taken; start on the first host; the output directory"
        " is on all hosts (default: this machine)",
        path_name, "FILE",
    )  # fmt: skip
    time_limit: float = option(
        "limit of a launch; one that takes longer has failed (default 600)", seconds, "SECONDS", default=600.0
    )
    profiles: int = option(
        "launches of every setting with --profile, for the breakdown of a step (default 3)",
        _repetitions, "N", default=PROFILES,
    )  # fmt: skip
    no_profile: bool = flag("no profiled launches, no breakdown of the step")
    retry_failed: bool = flag("repeat launches that failed in an earlier call")
    dry_run: bool = flag("print what would be launched, and how long it takes; launch and write nothing")


@dataclass(frozen=True)
class Output:
    """Folder of the results, and their interpretation."""

    output: str = option(
        f"directory of launches and report (default: {OUTPUT}); a comparison in it continues",
        path_name,
        "DIR",
    )
    confidence: float = option(
        "confidence of all verdicts of a report together (default 0.95)", within(0.5, 1), default=0.95
    )
    price_per_hour: float | None = option("price of an instance: adds the cost of both stages", positive, "X")
    gpus_per_instance: int | None = option("workers on an instance (default 1)", positive_int, "N")


@dataclass(frozen=True)
class _Mode:
    """The comparison that is made instead of the one of training runs."""

    comm_only: bool = flag("communication alone, by message size")
    project: bool = flag("predict throughput and efficiency on up to 1024 GPUs")
    emulate: bool = flag("real exchanges between hosts with slow links, emulated on this machine; needs root")


@dataclass(frozen=True)
class Launching(Measurement, Output):
    """Options of all comparisons that launch ranks.

    Attributes:
        backends: by their keys.
        cluster: the hosts of --hostfile; None: this machine.
        command: words of the command line, for the report.
        given: every option with its value, for the report.
    """

    backends: Mapping[str, Backend] = derived()
    cluster: Cluster | None = derived()
    command: tuple[str, ...] = derived()
    given: Mapping[str, Any] = derived()

    @property
    def titles(self) -> dict[str, str]:
        """Key of a backend -> its name for people."""
        return {key: backend.title for key, backend in self.backends.items()}


@dataclass(frozen=True)
class RunsOptions(Axes, Trained, Launching):
    """Options of the comparison of training runs. `script_args`: the words after --. `gpus`: of this machine;
    0: CPUs. `settings`: every combination of the axes. `profiles` is 0 with --no_profile."""

    script_args: tuple[str, ...] = derived()
    gpus: int = derived()
    settings: tuple[Setting, ...] = derived()


@dataclass(frozen=True)
class MessagesOptions(OfMessages, Launching):
    """Options of --comm_only. `cells`: every combination of its axes."""

    messages: tuple[Message, ...] = derived()
    cells: tuple[Cell, ...] = derived()


@dataclass(frozen=True)
class EmulationOptions(OfEmulation, Launching):
    """Options of --emulate. `projection`: those that it shares with --project. `settings`: every combination
    of the axes."""

    settings: tuple[EmulatedSetting, ...] = derived()
    projection: ProjectionOptions = derived()


@dataclass(frozen=True)
class MergeOptions:
    """Options of --merge. Those without a help are the comparisons', too."""

    output: str
    confidence: float
    command: tuple[str, ...]
    merge: Sequence[str] | None = option(
        "lay reports over each other: folders of earlier comparisons, or their .json files; the first is what"
        " the others are compared with",
        path_name, "DIR", nargs="+",
    )  # fmt: skip
    fail_if_slower: float | None = option(
        "exit with 1 where a later report is shown to be slower than the first by more than this, or failed"
        " where the first has figures",
        within(0, 1000, "percent"), "PERCENT",
    )  # fmt: skip


_LAUNCHES = ("backends", "repeats", "seed", "time_limit", "retry_failed", "dry_run", "output", "confidence")
# What is made instead of the comparison of training runs, by its option: its own options, its folder, and
# those options of the comparison of training runs that it takes, too.
_MODES: Mapping[str, tuple[type, str, tuple[str, ...]]] = {
    "comm_only": (OfMessages, OUTPUT, (*_LAUNCHES, "workers", "hostfile")),
    "project": (ProjectionOptions, "runs/projection", ("model", "max_seq_length", "accumulate", "output")),
    "emulate": (OfEmulation, "runs/emulation", (*_LAUNCHES, "max_seq_length")),
    "merge": (MergeOptions, "runs/merged", ("output", "confidence")),
}
# Of --project's own options; the axes of --emulate take the place of the others.
_ALSO_EMULATED = (
    *("cluster", "cycle_ms", "fusion_mb", "partition_bytes", "compute_s", "optimizer_s", "overlap"),
    *("batch_size", "vocab_size"),
)
Options = Union[RunsOptions, MessagesOptions, ProjectionOptions, EmulationOptions, MergeOptions]


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
    options = _parser(description).parse_args(own)
    modes = [name for name in _MODES if getattr(options, name)]
    if len(modes) > 1:
        raise InputError(f"{' and '.join(f'--{name}' for name in modes)} exclude each other")
    for name, (table, _, common) in _MODES.items():
        if name in modes:
            of_runs = options_in(Axes, Trained, Measurement, Output)
            _reject(options, of_runs, f"is not for --{name}; leave it out", common)
        else:
            but = _ALSO_EMULATED if options.emulate else ()
            _reject(options, options_in(table), f"is an option of --{name}", but)
    if options.confidence == 1:
        raise InputError(f"--confidence {options.confidence:g}: must be at least 0.5 and below 1")
    if script_args and modes:
        raise InputError(f"{script_args[0]} after --: --{modes[0]} runs no training script")
    command = ("python", "compare.py", *arguments)
    options.output = os.path.expanduser(options.output or (_MODES[modes[0]][1] if modes else OUTPUT))
    if options.emulate:
        return _of_emulation(options, backends, command)
    if options.merge:
        return taken(MergeOptions, options, command=command)
    if options.project:
        return taken(ProjectionOptions, options)
    options.script_args = tuple(expand_options(script_args))
    options.gpus, cluster = count_gpus(), None
    if options.hostfile:
        cluster = Cluster(tuple(read_host_lines(options.hostfile)), bool(options.gpus))
    _settle_axes(options, backends, cluster)
    values = {
        "backends": {key: backends[key] for key in options.backends},
        "cluster": cluster,
        "command": command,
        "given": dict(vars(options)),
    }
    if not options.comm_only:
        return _of_runs(options, values)
    try:
        messages = parse_messages(options.sizes, options.message_dtype)
    except ValueError as error:
        raise InputError(f"--sizes: {error}") from error
    # The comparison of training has one worker by default, as the base of its efficiency.
    workers = [number for number in options.workers if number > 1]
    if not workers:
        raise InputError("--workers: --comm_only needs 2 or more, since one has nobody to send to")
    cells = tuple(Cell(key, number) for number in workers for key in options.backends)
    return taken(MessagesOptions, options, **values, messages=tuple(messages), cells=cells)


def _of_runs(options: argparse.Namespace, values: dict[str, Any]) -> RunsOptions:
    """Raises InputError for what only the comparison of training runs needs."""
    total, warm_up, interval = options.steps, options.warmup_steps, options.log_interval
    for name, number in (("steps", total), ("warmup_steps", warm_up)):
        if number % interval:
            raise InputError(f"--{name} {number}: must be a multiple of --log_interval {interval}")
    if total < warm_up + 3 * interval:
        raise InputError(
            f"--steps {total}: after {warm_up} steps of warm-up there must be 3 intervals"
            f" of {interval}; give {warm_up + 3 * interval} or more"
        )
    settings = all_settings(options.backends, options.workers, options.dtypes, options.batch_sizes)
    if options.no_profile and options.profiles != PROFILES:
        raise InputError(f"--profiles {options.profiles} and --no_profile exclude each other; leave one out")
    if not options.gpus and "float16" in options.dtypes:
        raise InputError(
            "--dtypes float16: MXNet multiplies float16 matrices on GPUs only; there are none here"
        )
    profiles = 0 if options.no_profile else options.profiles
    return taken(RunsOptions, options, **values, settings=tuple(settings), profiles=profiles)


def _of_emulation(
    options: argparse.Namespace, backends: Mapping[str, Backend], command: tuple[str, ...]
) -> EmulationOptions:
    """Raises InputError for values that do not go together."""
    keys = options.backends or ["hvd_mpi", "hvd_gloo", "byteps"]
    for key in keys:
        if key not in backends or keys.count(key) > 1:
            raise InputError(f"--backends {key}: choose from {', '.join(backends)}, each once")
    chosen = {key: backends[key] for key in keys}
    return taken(
        EmulationOptions,
        options,
        backends=chosen,
        cluster=None,
        settings=tuple(emulated_settings(taken(OfEmulation, options), chosen)),
        projection=taken(ProjectionOptions, options),
        command=command,
        given=dict(vars(options)),
    )


def _parser(description: str | None) -> argparse.ArgumentParser:
    parser = ScriptParser(
        prog="compare.py",
        usage="%(prog)s [options] [-- options of the training scripts]",
        description=description,
        epilog=_EXIT_CODES,
    )
    groups: tuple[tuple[str, str | None, type], ...] = (
        ("axes: every combination is compared", None, Axes),
        ("training", "all other options of the training scripts can be given after --", Trained),
        ("measurement", None, Measurement),
        ("result", None, Output),
        ("instead of the comparison of training runs", None, _Mode),
        ("communication alone (--comm_only)", None, OfMessages),
        ("projection (--project); values in parentheses are the defaults", None, ProjectionOptions),
        ("reports over each other (--merge)", "also --output, --confidence", MergeOptions),
        ("emulated clusters (--emulate)", f"also --{' --'.join(_ALSO_EMULATED)}", OfEmulation),
    )
    for title, text, kind in groups:
        table = options_in(kind)
        add_options(parser.add_argument_group(title, text).add_argument, table, " ".join(table))
    return parser


def _reject(options: argparse.Namespace, table: Table, why: str, but: Sequence[str] = ()) -> None:
    """Raises InputError where an option of another comparison was given, `but` for these."""
    for name, known in table.items():
        value = getattr(options, name)
        left_out = value is None or value is False or value == known.words.get("default")
        if not left_out and name not in but:
            hint = "; here it is --batch_sizes" if name == "batch_size" else ""
            raise InputError(f"--{name}: {why}{hint}")


def _settle_axes(
    options: argparse.Namespace, backends: Mapping[str, Backend], cluster: Cluster | None
) -> None:
    """Gives the axes that were left out their values on this machine, and checks all."""
    local = bool(options.gpus) and cluster is None
    random = any(word.startswith("--dummy_data_len") for word in options.script_args)
    if options.batch_sizes is None and (options.data or random) and not options.comm_only:
        raise InputError(
            "--batch_sizes: needed with --data and --dummy_data_len; for example --batch_sizes 1024 2048"
        )
    for key in options.backends or ():
        if key not in backends:
            raise InputError(f"--backends {key}: choose from {', '.join(backends)}")
    for name, default in (
        ("backends", ("hvd_mpi", "hvd_gloo", BYTEPS_LOCAL if local else "byteps")),
        ("workers", sorted({1, cluster.slots if cluster else options.gpus or 2})),
        ("dtypes", ("float32", "float16" if options.gpus else "bfloat16")),
        ("batch_sizes", EMBEDDED_BATCHES),
    ):
        values = tuple(getattr(options, name) or default)
        for value in values:
            if values.count(value) > 1:
                raise InputError(f"--{name}: {value} is named twice")
        setattr(options, name, values)
    most = max(options.workers)
    if cluster and most > cluster.slots:
        raise InputError(f"--workers {most}: {options.hostfile} has {cluster.slots} slots")
    for key in options.backends if local else ():
        if backends[key].launcher == BYTEPS and most > 1:
            raise InputError(
                f"--backends {key}: all workers of this machine would take its first GPU; use"
                " byteps_local, one worker with a rank for each GPU"
            )
    if local and most > options.gpus:
        raise InputError(f"--workers {most}: there are {options.gpus} GPUs here")
    with tempfile.TemporaryDirectory() as directory:
        for key, workers in itertools.product(options.backends, options.workers):
            try:
                launch_words(backends[key], workers, cluster, directory)
            except InputError as error:
                raise InputError(f"--backends {key}: {error}") from error
    if options.model:
        parse_model(options.model)
