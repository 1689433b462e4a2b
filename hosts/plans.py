"""Runs by the LAMB paper: the options from which a plan follows, the same for hparams.py and for the commands
that write a cluster's job; the plan as a job; what each rank of a cluster's job runs. Standard library
only."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Callable, Sequence

from base.command_line import CommandParser, pair_of, positive_int, split_at_dashes
from base.errors import InputError, one_line
from base.launchers import BYTEPS, HVD
from base.options import add_options, flag, option, options_in, taken
from hosts.shell import Job, Required, Word
from lamb_paper import (
    PAPER,
    STAGE_LENGTHS,
    STAGES,
    Baseline,
    PerStage,
    Plan,
    Recipe,
    mixed_batch_plan,
    plan,
    plan_for_target,
)

ROOT = Path(__file__).resolve().parents[1]
BACKENDS = (HVD, BYTEPS)
SCRIPTS = {HVD: "run_pretraining_hvd.py", BYTEPS: "run_pretraining_byteps.py"}
# In a process of its own: hosts/ knows nothing of training. It imports no MXNet.
_CHECK = "import sys; from training.options import parse_options; parse_options(sys.argv[2:], sys.argv[1])"
BEFORE = "--pipeline_stages"  # the plan follows from it
DATA = Required("DATA", "set it to your text files, for example /corpus/*.txt")
DEFAULTS = {"--model": "bert_24_1024_16", "--dtype": "float16", "--optimizer": "lamb"}
CKPT_DIR = "ckpt_dir"  # both stages', also where each is a run of its own: stage 2 begins with stage 1's end

# Groups of options: about the cluster, from the batch to the accumulation, of the recipe.
CLUSTER = "tokens_per_gpu accumulate pipeline_stages"
TARGET = "target_batch_size target_batch_size_2 mixed_batch"
RECIPE = "stage max_seq_length_1 max_seq_length_2 baseline_batch_size baseline_steps_1 baseline_steps_2"


def _count(text: str, metavar: str, default: int | None = None) -> Any:
    return option(text, positive_int, metavar=metavar, default=default)


@dataclass(frozen=True)
class PlanOptions:
    """Options of a plan as given; None, or the default: left out. `num_gpus`: ranks of the whole run."""

    num_gpus: int | None = None
    tokens_per_gpu: PerStage[int] | None = option(
        "tokens a GPU takes in one pass; the published p3dn runs had 8192",
        pair_of(positive_int),
        metavar="N[,N]",
    )
    accumulate: PerStage[int] | None = option(
        "passes added up for one step (default 1); doubled, it is like twice the GPUs",
        pair_of(positive_int),
        metavar="N[,N]",
    )
    pipeline_stages: int = _count(
        "GPUs that share one model's layers and one batch: their number is a multiple", "S", 1
    )
    target_batch_size: int | None = _count("sequences wanted in a step, in each stage", "B")
    target_batch_size_2: int | None = _count("sequences wanted in a step of stage 2, where that differs", "B")
    mixed_batch: bool = flag(
        "the paper's fastest run as published: 7038 steps of 65536 sequences, then 1561 of 32768"
    )
    stage: str | None = option(
        "only this stage, or both in one run (default both; with hparams.py --check by the length)",
        choices=sorted(STAGES),
        flags=["--stages"],
    )
    max_seq_length_1: int | None = _count("tokens a sequence in stage 1 (default 128)", "L")
    max_seq_length_2: int | None = _count("tokens a sequence in stage 2 (default 512)", "L")
    baseline_batch_size: int = _count("sequences in a step of the run to match", "B", PAPER.batch_size)
    baseline_steps_1: int = _count("its steps in stage 1", "N", PAPER.steps[0])
    baseline_steps_2: int = _count("its steps in stage 2", "N", PAPER.steps[1])

    @property
    def replicas(self) -> int:
        """Replicas of the model: as many as GPUs, where no pipeline shares its layers."""
        assert self.num_gpus is not None
        return self.num_gpus // self.pipeline_stages

    @property
    def baseline(self) -> Baseline:
        """The run to match."""
        return Baseline(self.baseline_batch_size, (self.baseline_steps_1, self.baseline_steps_2))

    def given(self) -> list[str]:
        """Names of the options of a plan that are not as they are by default, in their order."""
        return [each.name for each in fields(PlanOptions) if getattr(self, each.name) != each.default]

    def check_together(self) -> None:
        """Raises InputError for options that exclude each other or would have no effect."""
        given = self.given()
        ways = [name for name in ("accumulate", "target_batch_size", "mixed_batch") if name in given]
        if len(ways) > 1:
            raise InputError(f"--{ways[0]} and --{ways[1]} exclude each other: one follows from the other")
        if "target_batch_size_2" in given and "target_batch_size" not in given:
            raise InputError("--target_batch_size_2 goes with --target_batch_size only")

    def check_replicas(self, source: str) -> None:
        """Raises InputError where the GPUs are no whole replicas. `source`: the words before `are no
        multiple`."""
        gpus, stages = self.num_gpus, self.pipeline_stages
        assert gpus is not None
        if gpus % stages:
            fewer, more = gpus // stages * stages, (gpus // stages + 1) * stages
            raise InputError(
                f"{source} are no multiple of --pipeline_stages {stages}; "
                f"{f'{fewer} or ' if fewer else ''}{more} would do"
            )

    def plan(self) -> Plan:
        """The plan that the options describe. Replicas take the place of GPUs: a pipeline's read one batch.

        Raises:
            InputError: `tokens_per_gpu` is missing, or no plan has these values.
        """
        assert self.num_gpus is not None
        if self.tokens_per_gpu is None:
            raise InputError("--tokens_per_gpu is missing")
        cluster = (self.replicas, self.tokens_per_gpu)
        stages = STAGES[self.stage or "both"]
        given = (self.max_seq_length_1, self.max_seq_length_2)
        if self.mixed_batch:
            if given != (None, None) or self.baseline != PAPER:
                raise InputError("--mixed_batch is a published run: sequence lengths and baseline are fixed")
            made = mixed_batch_plan(*cluster, stages)
        else:
            recipe = Recipe(
                stages, (given[0] or STAGE_LENGTHS[0], given[1] or STAGE_LENGTHS[1]), self.baseline
            )
            if self.target_batch_size is not None:
                made = plan_for_target(*cluster, self.target_batch_size, self.target_batch_size_2, recipe)
            else:
                made = plan(*cluster, self.accumulate or 1, recipe)
        return replace(made, num_gpus=self.num_gpus, pipeline_stages=self.pipeline_stages)


def pretraining_job(plan: Plan, script: str, own: Sequence[str], any_dtype: bool) -> Job:
    """A plan as a job of a training script.

    Args:
        plan: both stages, which become one run, or one of them.
        script: the training script.
        own: the user's own options. They replace the defaults (BERT-large, float16, lamb, raw text from
            $DATA, the checkpoints' folder) but not what `plan` has computed.
        any_dtype: leave the precision to the script, which chooses float16 on GPUs and float32 without: for
            a machine that may have none, where MXNet has no float16.

    Raises:
        InputError: `own` contradict the plan.
    """
    names = [word.split("=", 1)[0] for word in own if word.startswith("--")]
    computed = shlex.split(plan.options())
    for name in names:
        if name == BEFORE:
            raise InputError(f"{name} after --: the sequences of a step depend on it; give it before --")
        if name in computed:
            raise InputError(f"{name} after --: computed from the plan; change it in the printed command")
    left_out = {*names, "--dtype"} if any_dtype else names
    defaults = [word for pair in DEFAULTS.items() if pair[0] not in left_out for word in pair]
    cut = computed.index("--batch_size")
    data: list[Word] = []
    if "--dummy_data_len" not in names:
        given = [word.split("=", 1)[1] for word in own if word.startswith("--data=")]
        given += [value for name, value in zip(own, own[1:]) if name == "--data"]
        is_npz = any(value.endswith(".npz") for value in given)
        data += [] if "--raw" in names or is_npz else ["--raw"]
        data += [] if "--data" in names else ["--data", DATA]
    place = [] if "--ckpt_dir" in names else ["--ckpt_dir", CKPT_DIR]
    lines: list[Sequence[Word]] = [defaults, computed[:cut], computed[cut:], data, own, place]
    title = "both stages" if len(plan.stages) > 1 else f"stage {plan.stages[0].stage}"
    batches: list[str] = []
    for stage in plan.stages:
        sequences = f"{stage.sequences_per_step:.10g} sequences of {stage.max_seq_length}"
        batches.append(f"{stage.num_steps} {'of' if batches else 'steps of'} {sequences}")
    comment = [", then ".join(batches)]
    if [stage.stage for stage in plan.stages] == [2] and "--init_from" not in names:
        comment.append("It begins with the parameters of stage 1's last checkpoint in --ckpt_dir.")
    return Job(title, tuple(comment), script, tuple(map(tuple, lines)))


def write_cluster_job(
    parser: CommandParser,
    text: Callable[[argparse.Namespace, Sequence[str]], str],
    argv: Sequence[str] | None,
) -> int:
    """The main program of a command that writes a cluster's job to standard output: `text` of the parsed
    options, to which those of a plan are added, and of the words after `--`. Returns the exit code, 2 on bad
    input."""
    about = "with --tokens_per_gpu, as in hparams.py; behind -- follow options only then"
    group = parser.add_argument_group("the plan", about)
    add_options(group.add_argument, options_in(PlanOptions), f"{CLUSTER} {TARGET} {RECIPE}")
    words, own = split_at_dashes(sys.argv[1:] if argv is None else argv)
    try:
        written = text(parser.parse_args(words), own)
    except InputError as error:
        print(f"{parser.name}: {error}", file=sys.stderr)
        return 2
    sys.stdout.write(written)
    return 0


def script_and_options(
    args: argparse.Namespace, backend: str, ranks: int, own: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The script of every rank with its options, and lines about it: one about the run, and warnings.

    Args:
        args: parsed options, of a plan among them.
        ranks: of the whole run.
        own: words after `--`: with --tokens_per_gpu options, else a script and its options.

    Raises:
        InputError: they do not go together, or the script would not take its options.
    """
    plan = taken(PlanOptions, args)
    if plan.tokens_per_gpu is None:
        for name in plan.given():
            raise InputError(f"--{name}: goes with --tokens_per_gpu only; or write it behind the script")
        if not own or not own[0].endswith(".py"):
            raise InputError(
                "after --: write a script and its options, or options only with --tokens_per_gpu"
            )
        words, lines = list(own), [f"{own[0]}, {ranks} ranks"]
    else:
        words, lines = _planned(replace(plan, num_gpus=ranks), backend, own)
    check_script(words)
    if "--ckpt_dir" in {word.partition("=")[0] for word in words} and "--resume" not in words:
        words.append("--resume")  # a pod or host that starts again goes on; without a checkpoint it begins
    return words, lines


def _planned(options: PlanOptions, backend: str, own: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a plan's run, and lines about it."""
    options.check_together()
    if options.pipeline_stages > 1 and backend == BYTEPS:
        raise InputError(
            f"--pipeline_stages {options.pipeline_stages}: goes with --backend hvd; BytePS has neither "
            "groups of ranks nor messages between two ranks"
        )
    options.check_replicas(f"{options.num_gpus} ranks")
    plan = options.plan()
    job = pretraining_job(plan, SCRIPTS[backend], own, any_dtype=False)
    if any(isinstance(word, Required) for each in job.options for word in each):
        raise InputError("--data is missing after --: the files to train on, by their path on the cluster")
    lines = [f"{job.title}, {options.num_gpus} ranks: {job.comment[0]}", *job.comment[1:]]
    lines += [f"warning: {text}" for stage in plan.stages for text in stage.warnings]
    return [job.script, *(str(word) for each in job.options for word in each)], lines


def check_script(words: Sequence[str]) -> None:
    """Raises InputError where a script is not one of this project, or a pretraining script would reject its
    options. Files that they name are not looked at: they are on the cluster."""
    import subprocess  # hparams.py, which needs none of this, starts without it

    script = words[0]
    if not (ROOT / script).is_file():
        raise InputError(f"{script}: there is no such script in this project")
    if script not in SCRIPTS.values():
        return
    command = [sys.executable, "-c", _CHECK, *words]
    result = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode != 0:
        last = one_line((result.stderr.strip().splitlines() or ["rejected"])[-1])
        raise InputError(f"after --: {last.partition('InputError: ')[2] or last}")
