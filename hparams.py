#!/usr/bin/env python
"""Steps, learning rate and warmup of BERT's two pretraining stages, for any number of GPUs.

    python hparams.py --num_gpus 256 --tokens_per_gpu 8192 --accumulate 2            # the plan, as a table
    python hparams.py --num_gpus 32 --tokens_per_gpu 8192 --target_batch_size 32768  # find the accumulation
    python hparams.py --tokens_per_gpu 8192 --accumulate 2 --launch hvd --hostfile hosts/32x_p3dn
    python hparams.py --num_gpus 256 --check --batch_size 8192 --use_avg_len --accumulate 2 --lr 0.00354

The rules are in lamb_paper.py, the launch commands in hosts/. Needs the standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any, Callable, NamedTuple, NoReturn, Sequence

import lamb_paper
from base.errors import InputError
from hosts import mpirun, print_byteps
from hosts.hostfile import read_host_lines, read_hostfile
from hosts.shell import Cluster, Job, Required, Word, this_machine
from lamb_paper import CHECKED, PAPER, STAGE_LENGTHS, Baseline, Plan, Recipe, Stage
from training.options import expand_options, parse_options


class Launcher(NamedTuple):
    """Reader of a host file, printer of the commands, and the training script that they start."""

    read: Callable[[str], list[tuple[str, int]]]
    command: Callable[[Job, Cluster], str]
    script: str


LAUNCHERS = {
    "hvd": Launcher(read_hostfile, mpirun.command, "run_pretraining_hvd.py"),
    # A host that is listed twice is two workers to BytePS.
    "byteps": Launcher(read_host_lines, print_byteps.command, "run_pretraining_byteps.py"),
}
COMPUTED = (  # options of the training scripts that follow from the plan
    *("--num_steps", "--lr", "--warmup_ratio", "--batch_size", "--use_avg_len", "--accumulate"),
    *("--max_seq_length", "--max_predictions_per_seq", "--ckpt_dir"),
)
DATA = Required("DATA", "set it to your text files, for example /corpus/*.txt")


@dataclass(frozen=True)
class Options:
    """The command's options as given (None: left out), and the training script's own, after `--`.

    For the meanings see --help.
    """

    num_gpus: int | None = None
    tokens_per_gpu: int | None = None
    accumulate: int | None = None
    target_batch_size: int | None = None
    target_batch_size_2: int | None = None
    mixed_batch: bool = False
    stage: int | None = None
    max_seq_length_1: int | None = None
    max_seq_length_2: int | None = None
    baseline_batch_size: int = PAPER.batch_size
    baseline_steps_1: int = PAPER.steps[0]
    baseline_steps_2: int = PAPER.steps[1]
    json: bool = False
    launch: str | None = None
    check: bool = False
    hostfile: str | None = None
    sockets: int | None = None
    interface: str | None = None
    num_steps: int | None = None
    lr: float | None = None
    warmup_ratio: float | None = None
    max_predictions_per_seq: int | None = None
    batch_size: int | None = None
    use_avg_len: bool = False
    max_seq_length: int | None = None
    passed_on: tuple[str, ...] = ()

    @property
    def baseline(self) -> Baseline:
        """The run to match."""
        return Baseline(self.baseline_batch_size, (self.baseline_steps_1, self.baseline_steps_2))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code (0; 1 if --check finds a disagreement; 2 on bad input)."""
    own = list(sys.argv[1:] if argv is None else argv)
    passed_on: list[str] = []
    if "--" in own:
        cut = own.index("--")
        own, passed_on = own[:cut], own[cut + 1 :]
    parsed = vars(_parser().parse_args(own))
    try:
        options = Options(**parsed, passed_on=tuple(expand_options(passed_on)))
        code = _run(options)
        sys.stdout.flush()
        return code
    except InputError as error:
        print(f"hparams.py: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(options: Options) -> int:
    _check_options(options)
    hosts = []
    if options.launch:
        assert options.hostfile is not None
        hosts = LAUNCHERS[options.launch].read(options.hostfile)
        slots = sum(count for _, count in hosts)
        if options.num_gpus not in (None, slots):
            raise InputError(
                f"--num_gpus {options.num_gpus}: --hostfile {options.hostfile} has {slots} slots"
            )
        options = replace(options, num_gpus=slots)
    if options.num_gpus is None:
        raise InputError("--num_gpus is missing")
    if options.check:
        return _check(options)
    if options.batch_size is not None:
        raise InputError(_meanings_of_batch_size(options))
    plan = _plan(options)
    if options.launch:
        _print_commands(plan, options, hosts)
    else:
        print(json.dumps(plan.as_dict(), indent=2) if options.json else table(plan))
    return 0


def _plan(options: Options) -> Plan:
    """The plan that the options describe."""
    if options.tokens_per_gpu is None:
        raise InputError("--tokens_per_gpu is missing")
    assert options.num_gpus is not None
    cluster = (options.num_gpus, options.tokens_per_gpu)
    stages = (1, 2) if options.stage is None else (options.stage,)
    first, second = options.max_seq_length_1, options.max_seq_length_2
    if options.mixed_batch:
        if (first, second) != (None, None) or options.baseline != PAPER:
            raise InputError("--mixed_batch is a published run: sequence lengths and baseline are fixed")
        return lamb_paper.mixed_batch_plan(*cluster, stages)
    lengths = (
        STAGE_LENGTHS[0] if first is None else first,
        STAGE_LENGTHS[1] if second is None else second,
    )
    recipe = Recipe(stages, lengths, options.baseline)
    if options.target_batch_size is not None:
        targets = (options.target_batch_size, options.target_batch_size_2)
        return lamb_paper.plan_for_target(*cluster, *targets, recipe)
    return lamb_paper.plan(*cluster, _accumulate(options), recipe)


def _accumulate(options: Options) -> int:
    return 1 if options.accumulate is None else options.accumulate


def table(plan: Plan) -> str:
    """A plan as text: a column for each stage, its options as a line to paste, warnings."""
    rows = (
        ("max_seq_length", lambda s: s.max_seq_length),
        ("accumulate", lambda s: s.accumulate),
        ("sequences per step", lambda s: lamb_paper.number(s.sequences_per_step)),
        ("num_steps", lambda s: s.num_steps),
        ("lr", lambda s: f"{s.lr:.5g}"),
        ("warmup_ratio", lambda s: f"{s.warmup_ratio:.5g}"),
        ("warmup steps", lambda s: s.warmup_steps),
        ("max_predictions_per_seq", lambda s: s.max_predictions_per_seq),
        ("tokens seen", lambda s: f"{s.tokens_seen:,}"),
        ("in the paper's table", lambda s: s.source),
    )
    lines = [f"{plan.num_gpus} GPUs, {plan.tokens_per_gpu} tokens a GPU in one pass", ""]
    lines.append(" " * 24 + "".join(f"{f'stage {stage.stage}':>20}" for stage in plan.stages))
    lines += [f"{name:24}" + "".join(f"{cell(stage)!s:>20}" for stage in plan.stages) for name, cell in rows]
    for stage in plan.stages:
        lines += ["", f"stage {stage.stage}, as options of the training scripts:", stage.options()]
    warnings = [f"warning: {text}" for stage in plan.stages for text in stage.warnings]
    return "\n".join(lines + [""] * bool(warnings) + warnings)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"hparams.py: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="hparams.py",
        description=f"{__doc__}\n{lamb_paper.__doc__}",
        epilog="Rule of thumb: four times the sequences in a step are a quarter of the steps, twice the\n"
        "learning rate and four times the warmup ratio, that is, as many warmup steps as before.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    def count(group: Any, flag: str, text: str, metavar: str = "N", default: int | None = None) -> None:
        shown = text if default is None else f"{text} (default {default})"
        group.add_argument(flag, type=int, metavar=metavar, default=default, help=shown)

    group = parser.add_argument_group("the cluster")
    count(group, "--num_gpus", "GPUs, or processes without one; --launch counts the slots of --hostfile")
    count(group, "--tokens_per_gpu", "tokens a GPU takes in one pass; the published p3dn runs had 8192")
    count(
        group, "--accumulate", "passes added up for one step (default 1); doubled, it is like twice the GPUs"
    )

    group = parser.add_argument_group("the other way round, from the batch to the accumulation")
    count(group, "--target_batch_size", "sequences wanted in a step, in each stage", "B")
    count(group, "--target_batch_size_2", "sequences wanted in a step of stage 2, where that differs", "B")
    text = "the paper's fastest run as published: 7038 steps of 65536 sequences, then 1561 of 32768"
    group.add_argument("--mixed_batch", action="store_true", help=text)

    group = parser.add_argument_group("the recipe")
    group.add_argument("--stage", type=int, choices=(1, 2), help="only this stage")
    count(group, "--max_seq_length_1", "tokens a sequence in stage 1 (default 128)", "L")
    count(group, "--max_seq_length_2", "tokens a sequence in stage 2 (default 512)", "L")
    count(group, "--baseline_batch_size", "sequences in a step of the run to match", "B", PAPER.batch_size)
    count(group, "--baseline_steps_1", "its steps in stage 1", "N", PAPER.steps[0])
    count(group, "--baseline_steps_2", "its steps in stage 2", "N", PAPER.steps[1])

    group = parser.add_argument_group("what to print instead of the table")
    one_of = group.add_mutually_exclusive_group()
    one_of.add_argument("--json", action="store_true", help="the plan as JSON")
    text = "the commands that start each stage; options after a bare -- are the training script's own"
    one_of.add_argument("--launch", choices=sorted(LAUNCHERS), help=text)
    text = "compare a run's options with the paper's; exit code 1 if any differs"
    one_of.add_argument("--check", action="store_true", help=text)

    group = parser.add_argument_group("for --launch")
    group.add_argument("--hostfile", metavar="FILE", help="Open MPI host file, a line a host: name slots=8")
    count(group, "--sockets", "for hvd: CPU sockets of a host (default 2 from 8 slots on, else 1)")
    text = "network interface between the hosts (default: any but loopback and Docker's)"
    group.add_argument("--interface", metavar="NAME", help=text)

    group = parser.add_argument_group("for --check: options of the training scripts")
    count(group, "--num_steps", "steps")
    group.add_argument("--lr", type=float, help="peak learning rate")
    group.add_argument("--warmup_ratio", type=float, help="share of the steps")
    count(group, "--max_predictions_per_seq", "masked positions")
    count(group, "--batch_size", "sequences a GPU, or with --use_avg_len tokens (then: --tokens_per_gpu)")
    group.add_argument("--use_avg_len", action="store_true", help="--batch_size counts tokens")
    count(group, "--max_seq_length", "at most 128 is stage 1, longer is stage 2 (default 128)", "L")
    return parser


def _print_commands(plan: Plan, options: Options, hosts: Sequence[tuple[str, int]]) -> None:
    """Prints the commands that start each stage; warnings go to standard error."""
    assert options.launch is not None and options.hostfile is not None
    launcher = LAUNCHERS[options.launch]
    machine = this_machine(hosts)
    cluster = Cluster(options.hostfile, tuple(hosts), options.sockets, options.interface, machine)
    jobs = [_job(stage, launcher.script, options.passed_on, machine is not None) for stage in plan.stages]
    for job in jobs:
        _check_script_options(job)
    commands = [launcher.command(job, cluster) for job in jobs]
    for stage, command in zip(plan.stages, commands):
        print(command, end="\n\n")
        for text in stage.warnings:
            print(f"warning: {text}", file=sys.stderr)


def _job(stage: Stage, script: str, own: Sequence[str], any_dtype: bool) -> Job:
    """A stage as a job of the training script.

    Args:
        stage: computed options.
        script: the training script.
        own: the user's own options. They replace the defaults (BERT-large, float16, lamb, raw text from
            $DATA) but not what `stage` has computed.
        any_dtype: leave the precision to the script, which chooses float16 on GPUs and float32 without: for
            a machine that may have none, where MXNet has no float16.

    Raises:
        InputError: `own` contradict the stage.
    """
    comment = [
        f"{stage.num_steps} steps of {stage.sequences_per_step:.10g} sequences of {stage.max_seq_length}"
    ]
    if stage.stage == 2:
        comment.append(
            "It does not continue from stage 1's checkpoint yet: as it is, it trains from scratch."
        )
    names = [word.split("=", 1)[0] for word in own if word.startswith("--")]
    for name in names:
        if name in COMPUTED:
            raise InputError(f"{name} after --: computed for each stage; change it in the printed command")
    defaults = {"--model": "bert_24_1024_16", "--dtype": "float16", "--optimizer": "lamb"}
    if any_dtype:
        del defaults["--dtype"]
    computed = shlex.split(stage.options())
    cut = computed.index("--batch_size")
    data: list[Word] = []
    if "--dummy_data_len" not in names:
        data += [] if "--raw" in names or _is_npz(own) else ["--raw"]
        data += [] if "--data" in names else ["--data", DATA]
    lines: list[Sequence[Word]] = [
        [word for name, value in defaults.items() if name not in names for word in (name, value)],
        computed[:cut],
        computed[cut:],
        data,
        own,
        ["--ckpt_dir", f"ckpt_stage{stage.stage}"],
    ]
    return Job(f"stage {stage.stage}", tuple(comment), script, tuple(map(tuple, lines)))


def _is_npz(own: Sequence[str]) -> bool:
    """Tests whether the training data are npz files rather than text."""
    values = [word.split("=", 1)[1] for word in own if word.startswith("--data=")]
    values += [value for name, value in zip(own, own[1:]) if name == "--data"]
    return any(value.endswith(".npz") for value in values)


def _check_script_options(job: Job) -> None:
    """Raises InputError where the training script would not take its options."""
    words = [word if isinstance(word, str) else "DATA" for line in job.options for word in line]
    if {"--help", "-h"} & set(words):
        raise InputError(f"--help after --: python {job.script} --help lists the training script's options")
    try:
        parse_options(words, job.script)
    except InputError as error:
        reason = str(error).replace(
            "(--help lists the options)", f"(python {job.script} --help lists the options)"
        )
        raise InputError(f"after --: {reason}") from None


def _check(options: Options) -> int:
    """Prints the comparison of a run's options with the paper's; returns the exit code."""
    length = STAGE_LENGTHS[0] if options.max_seq_length is None else options.max_seq_length
    if (options.batch_size is None) == (options.tokens_per_gpu is None):
        raise InputError("--check needs one of --batch_size, as the run has it, and --tokens_per_gpu")
    if options.batch_size is None:
        tokens = options.tokens_per_gpu
    else:
        tokens = options.batch_size * (1 if options.use_avg_len else length)
    run = {name: getattr(options, name) for name in CHECKED}
    given = [f"--{name}" for name, value in run.items() if value is not None]
    if not given:
        raise InputError("--check needs something to judge: " + ", ".join(f"--{n}" for n in CHECKED))
    assert options.num_gpus is not None and tokens is not None
    accumulate = _accumulate(options)
    stage = lamb_paper.stage_for_run(options.num_gpus, tokens, accumulate, length, options.baseline)
    different = lamb_paper.disagreements(run, stage)
    print(
        f"stage {stage.stage}: {options.num_gpus} GPUs x {tokens} tokens x {accumulate} accumulated "
        f"= {lamb_paper.number(stage.sequences_per_step)} sequences of {length} tokens a step"
    )
    mixed = lamb_paper.follows_mixed_run(run, stage)
    hint = None
    if options.batch_size is not None:
        hint = lamb_paper.batch_size_hint(options.batch_size, options.use_avg_len, length)
    warnings = [] if mixed else [f"warning: {text}" for text in stage.warnings]  # the paper has trained there
    for line in [*([f"hint: {hint}"] if hint else []), *warnings, *(one.sentence for one in different)]:
        print(line)
    if not different:
        print(f"{', '.join(given)}: as in the paper" + ("'s mixed 64K/32K run" if mixed else ""))
    return 1 if different else 0


def _meanings_of_batch_size(options: Options) -> str:
    """The error for --batch_size without --check, with a command for each meaning that gives a plan."""
    size = options.batch_size
    assert size is not None and options.num_gpus is not None
    length = options.max_seq_length or options.max_seq_length_1 or STAGE_LENGTHS[0]
    own = replace(options, batch_size=None, use_avg_len=False, max_seq_length=None)
    readings = [(f"{size} tokens a GPU", replace(own, tokens_per_gpu=size))]
    if not options.use_avg_len:
        if size * length <= lamb_paper.MANY_TOKENS:
            text = f"{size} sequences of {length} a GPU"
            readings.append((text, replace(own, tokens_per_gpu=size * length)))
        one_pass = size * length // max(1, options.num_gpus)  # tokens a GPU, when no pass is accumulated
        usual = [tokens for tokens in (8192, 4096, 2048, 1024, 512) if one_pass % tokens == 0]
        tokens = options.tokens_per_gpu or (usual[0] if usual else one_pass)
        in_all = replace(own, tokens_per_gpu=tokens, target_batch_size=size, accumulate=None)
        readings.append((f"{size} sequences in a step of all GPUs", in_all))
    parts = [f"--batch_size {size} goes with --check only"]
    for text, reading in readings:
        try:
            _plan(reading)
        except InputError:
            continue
        parts.append(f"for {text}: {_as_command(reading)}")
    return "; ".join(parts)


def _as_command(options: Options) -> str:
    """The command line of these options, without those that have their default value."""
    usual = asdict(Options())
    words = ["python", "hparams.py"]
    for name, value in asdict(replace(options, passed_on=())).items():
        if value != usual[name] and not (name == "num_gpus" and options.launch):  # the host file has them
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join([*words, *(["--", *options.passed_on] if options.passed_on else [])])


def _check_options(options: Options) -> None:
    """Raises InputError for options that exclude each other or would have no effect."""
    given = {name for name, value in asdict(options).items() if value is not None and value is not False}
    ways = [name for name in ("accumulate", "target_batch_size", "mixed_batch") if name in given]
    if len(ways) > 1:
        raise InputError(f"--{ways[0]} and --{ways[1]} exclude each other: one follows from the other")
    needs = {
        "launch": ["hostfile", "sockets", "interface"],
        "target_batch_size": ["target_batch_size_2"],
        "check": [*CHECKED, "use_avg_len", "max_seq_length"],
    }
    for needed, names in needs.items():
        for name in names:
            if name in ("use_avg_len", "max_seq_length") and "batch_size" in given:
                continue  # they say how it is meant
            if name in given and needed not in given:
                raise InputError(f"--{name} goes with --{needed} only")
    for name in ("target_batch_size", "mixed_batch", "stage", "max_seq_length_1", "max_seq_length_2"):
        if options.check and name in given:
            raise InputError(f"--{name} plans a run and --check judges one: give one of them only")
    if options.launch and options.hostfile is None:
        raise InputError("--launch needs --hostfile, for example --hostfile hosts/1x_p3dn")
    if options.passed_on and not options.launch:
        raise InputError(
            f"{options.passed_on[0]}: options after -- are the training script's, for --launch only"
        )


if __name__ == "__main__":
    sys.exit(main())
