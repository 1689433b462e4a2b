"""The options and the output of `python hparams.py`. Standard library only."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from typing import Any, Callable, NamedTuple, NoReturn, Sequence

import hparams
import hparams_check
from base.errors import InputError as ScriptInputError
from hosts import launch_hvd, print_byteps
from hosts.hostfile import HostsError, read_host_lines, read_hostfile
from hosts.script_args import script_lines
from hparams import PAPER, STAGE_LENGTHS, Baseline, InputError, Plan, Stage
from training.options import parse_options


class Launcher(NamedTuple):
    """How its commands are printed: `read` gives hosts and slots of a host file, `command` the text, in which
    `script` is started."""

    read: Callable[[str], list[tuple[str, int]]]
    command: Callable[..., str]
    script: str


LAUNCHERS = {
    "hvd": Launcher(read_hostfile, launch_hvd.command, "run_pretraining_hvd.py"),
    # A host that is listed twice is two workers to BytePS.
    "byteps": Launcher(read_host_lines, print_byteps.command, "run_pretraining_byteps.py"),
}


def table(found: Plan) -> str:
    """The plan for people: a column a stage, each stage's options as a line to paste, warnings."""
    rows = (
        ("max_seq_length", lambda s: s.max_seq_length),
        ("accumulate", lambda s: s.accumulate),
        ("sequences per step", lambda s: hparams.number(s.sequences_per_step)),
        ("num_steps", lambda s: s.num_steps),
        ("lr", lambda s: f"{s.lr:.5g}"),
        ("warmup_ratio", lambda s: f"{s.warmup_ratio:.5g}"),
        ("warmup steps", lambda s: s.warmup_steps),
        ("max_predictions_per_seq", lambda s: s.max_predictions_per_seq),
        ("tokens seen", lambda s: f"{s.tokens_seen:,}"),
        ("in the paper's table", lambda s: s.source),
    )
    lines = [f"{found.num_gpus} GPUs, {found.tokens_per_gpu} tokens a GPU in one pass", ""]
    lines.append(" " * 24 + "".join(f"{f'stage {stage.stage}':>20}" for stage in found.stages))
    lines += [f"{name:24}" + "".join(f"{cell(stage)!s:>20}" for stage in found.stages) for name, cell in rows]
    for stage in found.stages:
        lines += ["", f"stage {stage.stage}, as options of the training scripts:", stage.options()]
    warnings = [f"warning: {text}" for stage in found.stages for text in stage.warnings]
    return "\n".join(lines + [""] * bool(warnings) + warnings)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"hparams.py: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="hparams.py",
        description=hparams.__doc__,
        epilog="Rule of thumb: four times the sequences in a step are a quarter of the steps, twice the\n"
        "learning rate and four times the warmup ratio, that is, as many warmup steps as before.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    def count(group: Any, flag: str, text: str, metavar: str = "N", default: int | None = None) -> None:
        shown = text if default is None else f"{text} (default {default})"
        group.add_argument(flag, type=int, metavar=metavar, default=default, help=shown)

    group = parser.add_argument_group("the cluster")
    count(group, "--num_gpus", "GPUs, or processes without one; a --hostfile has them in its slots")
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
    text = "which options of a run are not the paper's, and by how much; exit code 1 if any"
    one_of.add_argument("--check", action="store_true", help=text)

    group = parser.add_argument_group("for --launch")
    group.add_argument("--hostfile", metavar="FILE", help="Open MPI host file, a line a host: name slots=8")
    count(group, "--sockets", "for hvd: CPU sockets of a host (default 2 from 8 slots on, else 1)")
    text = "network interface between the hosts (default: any but loopback and Docker's)"
    group.add_argument("--interface", metavar="NAME", help=text)

    group = parser.add_argument_group("for --check, as the training scripts were given them")
    count(group, "--num_steps", "steps")
    group.add_argument("--lr", type=float, help="peak learning rate")
    group.add_argument("--warmup_ratio", type=float, help="share of the steps")
    count(group, "--max_predictions_per_seq", "masked positions")
    count(group, "--batch_size", "sequences a GPU, or with --use_avg_len tokens (then: --tokens_per_gpu)")
    group.add_argument("--use_avg_len", action="store_true", help="--batch_size counts tokens")
    count(group, "--max_seq_length", "at most 128 is stage 1, longer is stage 2 (default 128)", "L")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (0; 1 if --check finds a disagreement; 2 on bad input)."""
    own = list(sys.argv[1:] if argv is None else argv)
    passed_on: list[str] = []
    if "--" in own:
        cut = own.index("--")
        own, passed_on = own[:cut], own[cut + 1 :]
    args = _parser().parse_args(own)
    try:
        code = _run(args, passed_on)
        sys.stdout.flush()
        return code
    except (InputError, HostsError) as error:
        print(f"hparams.py: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(args: argparse.Namespace, passed_on: list[str]) -> int:
    _refuse_ignored(args, passed_on)
    hosts = []
    if args.launch:
        hosts = LAUNCHERS[args.launch].read(args.hostfile)
        slots = sum(count for _, count in hosts)
        if args.num_gpus not in (None, slots):
            raise InputError(f"--num_gpus {args.num_gpus}: --hostfile {args.hostfile} has {slots} slots")
        args.num_gpus = slots
    if args.num_gpus is None:
        raise InputError("--num_gpus is missing")
    if args.check:
        return _check(args)
    if args.batch_size is not None:
        raise InputError(_meanings_of_batch_size(args, passed_on))

    found = _chosen_plan(args)
    if args.launch:
        launcher = LAUNCHERS[args.launch]
        for stage in found.stages:
            _check_script_options(stage, passed_on, launcher.script)
        rest = (args.hostfile, hosts, args.sockets, args.interface, passed_on)
        commands = [launcher.command(stage, *rest) for stage in found.stages]
        for stage, command in zip(found.stages, commands):
            print(command, end="\n\n")
            for text in stage.warnings:
                print(f"warning: {text}", file=sys.stderr)
    else:
        print(json.dumps(found.as_dict(), indent=2) if args.json else table(found))
    return 0


def _chosen_plan(args: argparse.Namespace) -> Plan:
    if args.tokens_per_gpu is None:
        raise InputError("--tokens_per_gpu is missing")
    cluster = (args.num_gpus, args.tokens_per_gpu)
    stages = (1, 2) if args.stage is None else (args.stage,)
    given = (args.max_seq_length_1, args.max_seq_length_2)
    lengths = [usual if one is None else one for one, usual in zip(given, STAGE_LENGTHS)]
    baseline = _baseline(args)
    if args.mixed_batch:
        if given != (None, None) or baseline != PAPER:
            raise InputError("--mixed_batch is a published run: sequence lengths and baseline are fixed")
        return hparams.mixed_batch_plan(*cluster, stages)
    if args.target_batch_size is not None:
        targets = (args.target_batch_size, args.target_batch_size_2)
        return hparams.plan_for_target(*cluster, *targets, lengths, baseline, stages)
    return hparams.plan(*cluster, _accumulate(args), lengths, baseline, stages)


def _check(args: argparse.Namespace) -> int:
    length = STAGE_LENGTHS[0] if args.max_seq_length is None else args.max_seq_length
    if (args.batch_size is None) == (args.tokens_per_gpu is None):
        raise InputError("--check needs one of --batch_size, as the run has it, and --tokens_per_gpu")
    tokens = args.tokens_per_gpu
    if tokens is None:
        tokens = args.batch_size if args.use_avg_len else args.batch_size * length
    given = [f"--{name}" for name in hparams_check.CHECKED if getattr(args, name) is not None]
    if not given:
        raise InputError(
            "--check needs something to judge: " + ", ".join(f"--{n}" for n in hparams_check.CHECKED)
        )
    accumulate = _accumulate(args)
    stage = hparams.stage_for_run(args.num_gpus, tokens, accumulate, length, _baseline(args))
    found = hparams_check.disagreements(vars(args), stage)
    print(
        f"stage {stage.stage}: {args.num_gpus} GPUs x {tokens} tokens x {accumulate} accumulated "
        f"= {hparams.number(stage.sequences_per_step)} sequences of {length} tokens a step"
    )
    mixed = hparams_check.follows_mixed_run(vars(args), stage)
    hint = None
    if args.batch_size is not None:
        hint = hparams_check.batch_size_hint(args.batch_size, args.use_avg_len, length)
    warnings = [] if mixed else [f"warning: {text}" for text in stage.warnings]  # the paper has trained there
    for line in [*([f"hint: {hint}"] if hint else []), *warnings, *(one.sentence for one in found)]:
        print(line)
    if not found:
        print(f"{', '.join(given)}: as in the paper" + ("'s mixed 64K/32K run" if mixed else ""))
    return 1 if found else 0


def _check_script_options(stage: Stage, passed_on: Sequence[str], script: str) -> None:
    """Raises InputError where the training script would not take the options that it is going to get."""
    if {"--help", "-h"} & set(passed_on):
        raise InputError(f"--help after --: python {script} --help lists the training script's options")
    try:
        parse_options(shlex.split(" ".join(script_lines(stage, passed_on))), script)
    except ScriptInputError as error:
        reason = str(error).replace(
            "(--help lists the options)", f"(python {script} --help lists the options)"
        )
        raise InputError(f"after --: {reason}") from None


def _meanings_of_batch_size(args: argparse.Namespace, passed_on: Sequence[str]) -> str:
    """What to type in place of --batch_size where a plan is wanted: a command for each of its meanings that
    gives a plan."""
    size = args.batch_size
    length = args.max_seq_length or args.max_seq_length_1 or STAGE_LENGTHS[0]
    readings = [(f"{size} tokens a GPU", {"tokens_per_gpu": size})]
    if not args.use_avg_len:
        text = f"{size} sequences of {length} a GPU"
        if size * length <= hparams_check.MANY_TOKENS:
            readings.append((text, {"tokens_per_gpu": size * length}))
        one_pass = size * length // max(1, args.num_gpus)  # tokens a GPU, when no pass is accumulated
        usual = [tokens for tokens in (8192, 4096, 2048, 1024, 512) if one_pass % tokens == 0]
        tokens = args.tokens_per_gpu or (usual[0] if usual else one_pass)
        both = {"tokens_per_gpu": tokens, "target_batch_size": size, "accumulate": None}
        readings.append((f"{size} sequences in a step of all GPUs", both))
    said = []
    for text, changes in readings:
        own = {"batch_size": None, "use_avg_len": False, "max_seq_length": None, **changes}
        chosen = argparse.Namespace(**{**vars(args), **own})
        try:
            _chosen_plan(chosen)
        except InputError:
            continue
        said.append(f"for {text}: {_as_command(chosen, passed_on)}")
    return "; ".join([f"--batch_size {size} goes with --check only", *said])


def _as_command(args: argparse.Namespace, passed_on: Sequence[str]) -> str:
    """The command line that these options are from, without those that have their default value."""
    usual = vars(_parser().parse_args([]))
    words = ["python", "hparams.py"]
    for name, value in vars(args).items():
        if value != usual[name] and not (name == "num_gpus" and args.launch):  # the host file has them
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join([*words, *(["--", *passed_on] if passed_on else [])])


def _accumulate(args: argparse.Namespace) -> int:
    return 1 if args.accumulate is None else args.accumulate


def _baseline(args: argparse.Namespace) -> Baseline:
    return Baseline(args.baseline_batch_size, (args.baseline_steps_1, args.baseline_steps_2))


def _refuse_ignored(args: argparse.Namespace, passed_on: list[str]) -> None:
    """An option that would go unread is an error, not a surprise."""
    given = {name for name, value in vars(args).items() if value is not None and value is not False}
    ways = [name for name in ("accumulate", "target_batch_size", "mixed_batch") if name in given]
    if len(ways) > 1:
        raise InputError(f"--{ways[0]} and --{ways[1]} exclude each other: one follows from the other")
    needs = {
        "launch": ["hostfile", "sockets", "interface"],
        "target_batch_size": ["target_batch_size_2"],
        "check": [*hparams_check.CHECKED, "use_avg_len", "max_seq_length"],
    }
    for needed, names in needs.items():
        for name in names:
            if name in ("use_avg_len", "max_seq_length") and "batch_size" in given:
                continue  # they say how it is meant
            if name in given and needed not in given:
                raise InputError(f"--{name} goes with --{needed} only")
    for name in ("target_batch_size", "mixed_batch", "stage", "max_seq_length_1", "max_seq_length_2"):
        if args.check and name in given:
            raise InputError(f"--{name} plans a run and --check judges one: give one of them only")
    if args.launch and args.hostfile is None:
        raise InputError("--launch needs --hostfile, for example --hostfile hosts/1x_p3dn")
    if passed_on and not args.launch:
        raise InputError(f"{passed_on[0]}: options after -- are the training script's, for --launch only")
