#!/usr/bin/env python3
"""Steps, learning rate and warmup of BERT's two pretraining stages, for any number of GPUs.

    python hparams.py --num_gpus 256 --tokens_per_gpu 8192 --accumulate 2            # the plan, as a table
    python hparams.py --num_gpus 32 --tokens_per_gpu 8192 --target_batch_size 32768  # find the accumulation
    python hparams.py --tokens_per_gpu 8192 --accumulate 2 --launch hvd --hostfile hosts/32x_p3dn
    python hparams.py --num_gpus 256 --check --batch_size 8192 --use_avg_len --accumulate 2 --lr 0.00354

A pair N,N has the values of stage 1 and stage 2; one value is that of both. The rules are in lamb_paper.py,
the launch commands in hosts/. Needs the standard library only.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any, Sequence

import lamb_paper
from base.command_line import (
    CommandParser,
    code_of,
    pair_of,
    path_name,
    positive,
    positive_int,
    probability,
    split_at_dashes,
)
from base.errors import InputError
from base.launchers import BYTEPS, HVD
from base.options import add_options, flag, option, options_in
from hosts import mpirun, print_byteps
from hosts.hostfile import read_host_lines, read_hostfile
from hosts.networks import RULE, read_network
from hosts.plans import CLUSTER, RECIPE, SCRIPTS, TARGET, PlanOptions, pretraining_job
from hosts.shell import Cluster, Job, this_machine
from lamb_paper import CHECKED, STAGE_LENGTHS, STAGES, PerStage, Plan, in_stage
from training.options import expand_options, parse_options
from training.pipeline.options import check_launch
from training.pipeline.placement import INTRA_FIRST, Host, placement_warnings

# Reader of a host file, printer of the commands. A host that is listed twice is two workers to BytePS.
LAUNCHERS = {HVD: (read_hostfile, mpirun.command), BYTEPS: (read_host_lines, print_byteps.command)}
PAIRS = ("tokens_per_gpu", "accumulate", *CHECKED, "batch_size", "max_seq_length")  # options that may be A,B

_counts = pair_of(positive_int)


@dataclass(frozen=True)
class Options(PlanOptions):
    """The command's options as given (None: left out), and the training script's own, after `--`.

    For the meanings see --help.
    """

    json: bool = flag("the plan, or the result of --check, as JSON")
    launch: str | None = option(
        "the command that starts the run; options after a bare -- are the training script's own",
        choices=sorted(LAUNCHERS),
    )
    check: bool = flag("compare a run's options with the paper's; exit code 1 if any differs")
    hostfile: str | None = option("Open MPI host file, a line a host: name slots=8", path_name, "FILE")
    sockets: int | None = option(
        "for hvd: CPU sockets of a host (default 2 from 8 slots on, else 1)", positive_int, "N"
    )
    interface: str | None = option(
        "network interface between the hosts (default: any but loopback and Docker's)", metavar="NAME"
    )
    network: str | None = option(RULE, metavar="KIND")
    num_steps: PerStage[int] | None = option("steps", _counts, "N[,N]")
    lr: PerStage[float] | None = option("peak learning rate", pair_of(positive), "LR[,LR]")
    warmup_ratio: PerStage[float] | None = option("share of the steps", pair_of(probability), "R[,R]")
    max_predictions_per_seq: PerStage[int] | None = option("masked positions", _counts, "N[,N]")
    batch_size: PerStage[int] | None = option(
        "sequences a GPU, or with --use_avg_len tokens (then: --tokens_per_gpu)", _counts, "N[,N]"
    )
    use_avg_len: bool = flag("--batch_size counts tokens")
    max_seq_length: PerStage[int] | None = option(
        "without --stage, at most 128 is stage 1, longer is stage 2 (default 128; stage 2: 512)",
        _counts,
        "L[,L]",
    )
    passed_on: tuple[str, ...] = ()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code (0; 1 if --check finds a disagreement; 2 on bad input)."""
    own, passed_on = split_at_dashes(sys.argv[1:] if argv is None else argv)
    parsed = vars(_parser().parse_args(own))
    try:
        options = Options(**parsed, passed_on=tuple(expand_options(passed_on)))
        return _run(options)
    except InputError as error:
        print(f"hparams.py: {error}", file=sys.stderr)
        return 2


def _run(options: Options) -> int:
    _check_options(options)
    hosts = []
    if options.launch:
        assert options.hostfile is not None
        hosts = LAUNCHERS[options.launch][0](options.hostfile)
        slots = sum(count for _, count in hosts)
        if options.num_gpus not in (None, slots):
            raise InputError(
                f"--num_gpus {options.num_gpus}: --hostfile {options.hostfile} has {slots} slots"
            )
        options = replace(options, num_gpus=slots)
    if options.num_gpus is None:
        raise InputError("--num_gpus is missing")
    source = f"--num_gpus {options.num_gpus}: they"
    if options.launch:
        source = f"--hostfile {options.hostfile}: {options.num_gpus} slots"
    options.check_replicas(source)
    if options.check:
        return _check(options)
    if options.batch_size is not None:
        raise InputError(_meanings_of_batch_size(options))
    plan = options.plan()
    if options.launch:
        _print_command(plan, options, hosts)
    else:
        print(json.dumps(plan.as_dict(), indent=2) if options.json else table(plan))
    return 0


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
    tokens = list(dict.fromkeys(str(stage.tokens_per_gpu) for stage in plan.stages))
    gpus, holder = f"{plan.num_gpus} GPUs", "GPU"
    if plan.pipeline_stages > 1:
        replicas = plan.num_gpus // plan.pipeline_stages
        several = f"{replicas} replica{'s' if replicas > 1 else ''}"
        gpus, holder = f"{gpus} in {several} of {plan.pipeline_stages} pipeline stages", "replica"
    lines = [f"{gpus}, {', then '.join(tokens)} tokens a {holder} in one pass", ""]
    lines.append(" " * 24 + "".join(f"{f'stage {stage.stage}':>20}" for stage in plan.stages))
    lines += [f"{name:24}" + "".join(f"{cell(stage)!s:>20}" for stage in plan.stages) for name, cell in rows]
    if len(plan.stages) > 1:
        lines += ["", "both stages in one run, as options of the training scripts:", plan.options()]
    for stage in plan.stages:
        lines += ["", f"stage {stage.stage}, as options of the training scripts:", plan.options_of(stage)]
    warnings = [f"warning: {text}" for stage in plan.stages for text in stage.warnings]
    return "\n".join(lines + [""] * bool(warnings) + warnings)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        "hparams.py",
        prog="hparams.py",
        description=f"{__doc__}\n{lamb_paper.__doc__}",
        epilog="Rule of thumb: four times the sequences in a step are a quarter of the steps, twice the\n"
        "learning rate and four times the warmup ratio, that is, as many warmup steps as before.\n"
        "--estimate of the training scripts shows whether a batch fits into memory.",
    )

    group = parser.add_argument_group("the cluster")
    text = "GPUs, or processes without one; --launch counts the slots of --hostfile"
    group.add_argument("--num_gpus", type=positive_int, metavar="N", help=text)
    target = parser.add_argument_group("the other way round, from the batch to the accumulation")
    recipe = parser.add_argument_group("the recipe")
    plan = options_in(PlanOptions)
    for each, names in ((group, CLUSTER), (target, TARGET), (recipe, RECIPE)):
        add_options(each.add_argument, plan, names)

    table = options_in(Options)
    group = parser.add_argument_group("what to print instead of the table")
    add_options(group.add_argument, table, "json")
    add_options(group.add_mutually_exclusive_group().add_argument, table, "launch check")
    group = parser.add_argument_group("for --launch")
    add_options(group.add_argument, table, "hostfile sockets interface network")
    group = parser.add_argument_group("for --check: options of the training scripts")
    names = "num_steps lr warmup_ratio max_predictions_per_seq batch_size use_avg_len max_seq_length"
    add_options(group.add_argument, table, names)
    return parser


def _print_command(plan: Plan, options: Options, hosts: Sequence[tuple[str, int]]) -> None:
    """Prints the command that starts the plan's run; warnings go to standard error."""
    assert options.launch is not None and options.hostfile is not None
    command = LAUNCHERS[options.launch][1]
    machine = this_machine(hosts)
    network, interface = None, options.interface
    if options.network is not None:
        network = read_network(options.network, options.launch, interface)
        interface = interface or network.interface
    cluster = Cluster(options.hostfile, tuple(hosts), options.sockets, interface, machine, network)
    job = pretraining_job(plan, SCRIPTS[options.launch], options.passed_on, machine is not None)
    placement = _check_script_options(job)
    check_launch(plan.pipeline_stages, options.launch, True, {})
    print(command(job, cluster))
    if plan.pipeline_stages > 1:
        for text in placement_warnings([Host(*host) for host in hosts], plan.pipeline_stages, placement):
            print(f"warning: {text}", file=sys.stderr)
    for stage in plan.stages:
        for text in stage.warnings:
            print(f"warning: {text}", file=sys.stderr)


def _check_script_options(job: Job) -> str:
    """The --placement of its pipelines. Raises InputError where the training script would not take its
    options."""
    words = [word if isinstance(word, str) else "DATA" for line in job.options for word in line]
    if {"--help", "-h"} & set(words):
        raise InputError(f"--help after --: python {job.script} --help lists the training script's options")
    try:
        return parse_options(words, job.script).placement or INTRA_FIRST
    except InputError as error:
        reason = str(error).replace(
            "(--help lists the options)", f"(python {job.script} --help lists the options)"
        )
        raise InputError(f"after --: {reason}") from None


def _check(options: Options) -> int:
    """Prints the comparison of a run's options with the paper's, stage by stage; returns the exit code."""
    if (options.batch_size is None) == (options.tokens_per_gpu is None):
        raise InputError("--check needs one of --batch_size, as the run has it, and --tokens_per_gpu")
    if all(getattr(options, name) is None for name in CHECKED):
        raise InputError("--check needs something to judge: " + ", ".join(f"--{n}" for n in CHECKED))
    stages: Sequence[int | None] = (None,)  # by the length
    if options.stage is not None or any(isinstance(getattr(options, name), tuple) for name in PAIRS):
        stages = STAGES[options.stage or "both"]
    judged = [_judge(options, stage) for stage in stages]
    agrees = not any(each["disagreements"] for each in judged)
    if options.json:
        print(json.dumps({"agrees": agrees, "stages": judged}, indent=2))
    else:
        print(*(sentence for each in judged for sentence in each["sentences"]), sep="\n")
    return 0 if agrees else 1


def _judge(options: Options, number: int | None) -> dict[str, Any]:
    """One stage of a run (None: by its length stage 1 or 2) against the paper, as --json has it: the
    `disagreements`, and all there is to say as `sentences`."""
    run: dict[str, Any] = {}
    for name in PAIRS:
        value = getattr(options, name)
        run[name] = None if value is None else in_stage(value, number or 1)
    length, size, tokens = run["max_seq_length"], run["batch_size"], run["tokens_per_gpu"]
    if length is None:
        length = STAGE_LENGTHS[(number or 1) - 1]
    if size is not None:
        tokens = size * (1 if options.use_avg_len else length)
    accumulate = 1 if run["accumulate"] is None else run["accumulate"]
    try:
        stage = lamb_paper.stage_for_run(
            options.replicas, tokens, accumulate, length, options.baseline, number
        )
    except InputError as error:
        raise InputError(str(error).replace(f"--max_seq_length_{number} ", "--max_seq_length ")) from error
    different = lamb_paper.disagreements(run, stage)
    holders = "GPUs" if options.pipeline_stages == 1 else f"replicas of {options.pipeline_stages} GPUs"
    lines = [
        f"stage {stage.stage}: {options.replicas} {holders} x {tokens} tokens x {accumulate} accumulated "
        f"= {lamb_paper.number(stage.sequences_per_step)} sequences of {length} tokens a step"
    ]
    hint = None if size is None else lamb_paper.batch_size_hint(size, options.use_avg_len, length)
    lines += [f"hint: {hint}"] if hint else []
    mixed = lamb_paper.follows_mixed_run(run, stage)
    if not mixed:  # the paper has trained there
        lines += [f"warning: {text}" for text in stage.warnings]
    lines += [one.sentence for one in different]
    if not different:
        given = ", ".join(f"--{name}" for name in CHECKED if run[name] is not None)
        lines.append(f"{given}: as in the paper" + ("'s mixed 64K/32K run" if mixed else ""))
    return {
        "stage": stage.stage,
        "max_seq_length": length,
        "sequences_per_step": stage.sequences_per_step,
        "mixed_batch": mixed,
        "disagreements": [asdict(one) for one in different],
        "sentences": lines,
    }


def _meanings_of_batch_size(options: Options) -> str:
    """The error for --batch_size without --check, with a command for each meaning that gives a plan."""
    size = options.batch_size
    assert size is not None and options.num_gpus is not None
    stage = STAGES[options.stage or "both"][0]
    planned = (options.max_seq_length_1, options.max_seq_length_2)[stage - 1] or STAGE_LENGTHS[stage - 1]
    length = in_stage(options.max_seq_length or planned, stage)
    own = replace(options, batch_size=None, use_avg_len=False, max_seq_length=None)
    readings = [(f"{size} tokens a GPU", replace(own, tokens_per_gpu=size))]
    if not options.use_avg_len and isinstance(size, int):
        if size * length <= lamb_paper.MANY_TOKENS:
            text = f"{size} sequences of {length} a GPU"
            readings.append((text, replace(own, tokens_per_gpu=size * length)))
        one_pass = size * length // max(1, options.replicas)  # tokens a GPU, when no pass is accumulated
        usual = [tokens for tokens in (8192, 4096, 2048, 1024, 512) if one_pass % tokens == 0]
        tokens = options.tokens_per_gpu or (usual[0] if usual else one_pass)
        in_all = replace(own, tokens_per_gpu=tokens, target_batch_size=size, accumulate=None)
        readings.append((f"{size} sequences in a step of all GPUs", in_all))
    parts = [f"--batch_size {size} goes with --check only"]
    for text, reading in readings:
        try:
            reading.plan()
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
    options.check_together()
    needs = {
        "launch": ["hostfile", "sockets", "interface", "network"],
        "check": [*CHECKED, "use_avg_len", "max_seq_length"],
    }
    for needed, names in needs.items():
        for name in names:
            if name in ("use_avg_len", "max_seq_length") and "batch_size" in given:
                continue  # they say how it is meant
            if name in given and needed not in given:
                raise InputError(f"--{name} goes with --{needed} only")
    for name in ("target_batch_size", "mixed_batch", "max_seq_length_1", "max_seq_length_2"):
        if options.check and name in given:
            raise InputError(f"--{name} plans a run and --check judges one: give one of them only")
    if options.launch and options.json:
        raise InputError("--json: goes with the plan and with --check, not with --launch")
    if options.launch and options.hostfile is None:
        raise InputError("--launch needs --hostfile, for example --hostfile hosts/1x_p3dn")
    if options.passed_on and not options.launch:
        raise InputError(
            f"{options.passed_on[0]}: options after -- are the training script's, for --launch only"
        )


if __name__ == "__main__":
    sys.exit(code_of(main))
