"""The LAMB paper's rules (You et al., arXiv:1904.00962): batch size to steps, learning rate and warmup.

With B sequences in a step,

    B            = num_gpus * tokens_per_gpu * accumulate / max_seq_length
    num_steps    = 512 * baseline_steps / B, rounded up      baseline_steps: 900,000, then 100,000
    lr           = 0.005 * sqrt(B / 32768)
    warmup_ratio = B / 163840

which gives every row of the paper's table (B = 512, 1024, ..., 32768) and a value between the rows. Stage 2
reads the rules with its own B and warms up again.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Mapping, Sequence, TypeVar, Union

from base.errors import InputError

ROWS = (512, 1024, 2048, 4096, 8192, 16384, 32768)  # the batch sizes that the paper trained at
STAGES = {"1": (1,), "2": (2,), "both": (1, 2)}  # as options name them
STAGE_LENGTHS = (128, 512)  # tokens a sequence in stage 1 and stage 2
LONGEST = 512  # BERT's position embedding has so many rows

SCHEDULE = ("num_steps", "lr", "warmup_ratio")  # in the order of MIXED
CHECKED = (*SCHEDULE, "max_predictions_per_seq")  # the options that `disagreements` compares
TOLERANCE = 0.005  # a value rounded to three digits, as published ones are, is off by no more
MANY_TOKENS = 65536  # eight times what a V100 with 16 GB takes of BERT-large in one pass

Number = TypeVar("Number", int, float)
PerStage = Union[Number, tuple[Number, Number]]  # of both stages, or of stage 1 and stage 2


@dataclass(frozen=True)
class Baseline:
    """The run that a plan matches: as many sequences seen in each stage."""

    batch_size: int = 512
    steps: tuple[int, int] = (900_000, 100_000)


PAPER = Baseline()


@dataclass(frozen=True)
class Recipe:
    """Stages to plan (1, 2 or both), tokens a sequence in stages 1 and 2, and the run to match."""

    stages: tuple[int, ...] = (1, 2)
    max_seq_lengths: tuple[int, int] = STAGE_LENGTHS
    baseline: Baseline = PAPER


BOTH_STAGES = Recipe()


@dataclass(frozen=True)
class Stage:
    """One stage of a plan. A field named like an option of the training scripts has that option's meaning.

    `sequences_per_step` counts the sequences in one optimizer step over all GPUs. It is a float only where
    the tokens do not divide into whole sequences, and then an average. `tokens_seen` counts padding too.
    """

    stage: int
    max_seq_length: int
    sequences_per_step: float
    num_steps: int
    lr: float
    warmup_ratio: float
    warmup_steps: int
    max_predictions_per_seq: int
    accumulate: int
    tokens_per_gpu: int
    tokens_seen: int
    baseline_sequences: int
    source: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Both stages, or one of them, on one cluster.

    With `pipeline_stages` above 1 so many GPUs hold one replica of the model's layers, and a stage's
    `tokens_per_gpu` are those of a replica.
    """

    num_gpus: int
    stages: tuple[Stage, ...]
    pipeline_stages: int = 1

    def options(self) -> str:
        """Options of the training scripts for the whole plan in one run, on one line, where values in which
        the stages differ are pairs; the floats read back unchanged."""
        return _options(self.stages) + self._pipeline()

    def options_of(self, stage: Stage) -> str:
        """Options of the training scripts for one stage of it, on one line."""
        return _options([stage]) + self._pipeline()

    def _pipeline(self) -> str:
        return f" --pipeline_stages {self.pipeline_stages}" if self.pipeline_stages > 1 else ""

    def as_dict(self) -> dict[str, Any]:
        """Contents of --json. The outer `tokens_per_gpu` and `accumulate` are None when the stages differ in
        them."""
        tokens = {stage.tokens_per_gpu for stage in self.stages}
        accumulations = {stage.accumulate for stage in self.stages}
        pipeline = {"pipeline_stages": self.pipeline_stages} if self.pipeline_stages > 1 else {}
        return {
            "num_gpus": self.num_gpus,
            **pipeline,
            "tokens_per_gpu": tokens.pop() if len(tokens) == 1 else None,
            "accumulate": accumulations.pop() if len(accumulations) == 1 else None,
            "stages": [{**asdict(stage), "options": self.options_of(stage)} for stage in self.stages],
            "options": self.options(),
        }


def in_stage(value: PerStage[Number], stage: int) -> Number:
    """The value of stage 1 or 2."""
    return value[stage - 1] if isinstance(value, tuple) else value


def scaled_lr(batch_size: float) -> float:
    """Peak learning rate: the square-root rule through 0.005 at 32768 (the paper's table of untuned LAMB)."""
    return 0.005 * math.sqrt(batch_size / 32768)


def scaled_warmup_ratio(batch_size: float) -> float:
    """Share of the steps spent warming up: linear, 1/5 at 32768 (the same table); never more than all."""
    return min(1.0, batch_size / 163840)


def warmup_steps(num_steps: int, warmup_ratio: float) -> int:
    """Whole warmup steps: num_steps * warmup_ratio, a half rounded up (14063 * 0.2 = 2812.6 becomes 2813)."""
    return math.floor(num_steps * warmup_ratio + 0.5)


def default_max_predictions(max_seq_length: int) -> int:
    """Masked positions in a sequence: the published runs' 20 at 128 and 80 at 512, else 15% rounded up."""
    return {128: 20, 512: 80}.get(max_seq_length, math.ceil(Fraction(15 * max_seq_length, 100)))


def stage_for_run(
    world_size: int,
    tokens_per_gpu: int,
    accumulate: int,
    max_seq_length: int,
    baseline: Baseline = PAPER,
    stage: int | None = None,
) -> Stage:
    """The paper's values for a run on `world_size` GPUs (or processes without a GPU).

    A run of at most 128 tokens a sequence is stage 1, a longer one stage 2, unless `stage` is given. The
    stage decides which of the baseline's step counts the run has to match.

    Raises:
        InputError: sequences above 512 tokens, or a GPU that cannot hold one sequence.
    """
    _check_sizes(tokens_per_gpu, max_seq_length, stage)
    if stage is None:
        stage = 1 if max_seq_length <= STAGE_LENGTHS[0] else 2
    tokens = world_size * tokens_per_gpu * accumulate
    exact = Fraction(tokens, max_seq_length)
    batch_size = _plain(exact)
    sequences = baseline.batch_size * baseline.steps[stage - 1]
    num_steps = math.ceil(sequences / exact)
    warmup_ratio = scaled_warmup_ratio(batch_size)
    return Stage(
        stage=stage,
        max_seq_length=max_seq_length,
        sequences_per_step=batch_size,
        num_steps=num_steps,
        lr=scaled_lr(batch_size),
        warmup_ratio=warmup_ratio,
        warmup_steps=warmup_steps(num_steps, warmup_ratio),
        max_predictions_per_seq=default_max_predictions(max_seq_length),
        accumulate=accumulate,
        tokens_per_gpu=tokens_per_gpu,
        tokens_seen=num_steps * tokens,
        baseline_sequences=sequences,
        source=_source(batch_size),
        warnings=_warnings(stage, batch_size),
    )


def plan(
    num_gpus: int,
    tokens_per_gpu: PerStage[int],
    accumulate: PerStage[int] = 1,
    recipe: Recipe = BOTH_STAGES,
) -> Plan:
    """The plan for a cluster and its accumulation.

    Raises:
        InputError: see `stage_for_run`.
    """
    chosen = []
    for n in recipe.stages:
        batch = (in_stage(tokens_per_gpu, n), in_stage(accumulate, n))
        chosen.append(stage_for_run(num_gpus, *batch, recipe.max_seq_lengths[n - 1], recipe.baseline, n))
    return Plan(num_gpus, tuple(chosen))


def plan_for_target(
    num_gpus: int,
    tokens_per_gpu: PerStage[int],
    target_batch_size: int,
    target_batch_size_2: int | None = None,
    recipe: Recipe = BOTH_STAGES,
) -> Plan:
    """The inverse: the accumulation with which each stage has `target_batch_size` sequences in a step.

    Stage 2 has the same target, as in every row of the paper's table, unless `target_batch_size_2` is given.
    Its sequences are longer, so it accumulates more often.

    Raises:
        InputError: no whole number fits; the message names the nearest that do.
    """
    flags = ["--target_batch_size", "--target_batch_size"]
    targets = [target_batch_size, target_batch_size]
    if target_batch_size_2 is not None:
        flags[1], targets[1] = "--target_batch_size_2", target_batch_size_2
    chosen = []
    for n in recipe.stages:
        length, target, baseline = recipe.max_seq_lengths[n - 1], targets[n - 1], recipe.baseline
        tokens = in_stage(tokens_per_gpu, n)
        _check_sizes(tokens, length, n)
        one_pass = Fraction(num_gpus * tokens, length)
        exact = target / one_pass
        if exact.denominator != 1:
            near = sorted({max(1, math.floor(exact)), math.ceil(exact)})
            fits = [f"{number(_plain(count * one_pass))} with --accumulate {count}" for count in near]
            raise InputError(
                f"{flags[n - 1]} {target}: no whole accumulation gives it in stage {n}, where one pass of "
                f"{num_gpus} GPUs x {tokens} tokens is {number(_plain(one_pass))} sequences of "
                f"{length}; nearest: {', '.join(fits)}"
            )
        chosen.append(stage_for_run(num_gpus, tokens, int(exact), length, baseline, n))
    return Plan(num_gpus, tuple(chosen))


# Batch size, steps, lr and warmup ratio of the mixed 64K/32K run. They are published constants; no rule here
# gives them. The paper's table has only the total of the steps, 8,599. NVIDIA's DeepLearningExamples, which
# repeat the run, take 7,038 (9/10 of their 7,820) at 0.006 after about 2,000 of warmup, then 1,563 at 0.004
# after 200. The formula gives 1,563 too: 512 * 100,000 / 32768, rounded up. The paper's total leaves 1,561,
# 0.1% less; this is the paper's run.
MIXED = ((65536, 7038, 0.006, 0.2843), (32768, 1561, 0.004, 0.128))
MIXED_NOTES = (
    "stage 1: 7038 steps, lr and warmup are NVIDIA's published values for the paper's mixed batch",
    "stage 2: 1561 steps are the paper's total of 8599 less 7038 (NVIDIA's scripts: 1563); lr and warmup are "
    "NVIDIA's published values",
)


def mixed_batch_plan(num_gpus: int, tokens_per_gpu: PerStage[int], stages: tuple[int, ...] = (1, 2)) -> Plan:
    """The paper's mixed-batch run: 65536 sequences of 128 tokens a step, then 32768 of 512; 8,599 steps.

    Raises:
        InputError: the cluster cannot have these batches; see `plan_for_target`.
    """
    formula_plan = plan_for_target(num_gpus, tokens_per_gpu, MIXED[0][0], MIXED[1][0], Recipe(stages))
    published = []
    for stage in formula_plan.stages:
        _, steps, lr, ratio = MIXED[stage.stage - 1]
        formula = f"the formula: {stage.num_steps}, lr {stage.lr:.5g}, warmup_ratio {stage.warmup_ratio:.5g}"
        published.append(
            replace(
                stage,
                num_steps=steps,
                lr=lr,
                warmup_ratio=ratio,
                warmup_steps=warmup_steps(steps, ratio),
                tokens_seen=steps * (stage.tokens_seen // stage.num_steps),
                source="published run",
                warnings=(f"{MIXED_NOTES[stage.stage - 1]}; {formula}",),
            )
        )
    return replace(formula_plan, stages=tuple(published))


@dataclass(frozen=True)
class Disagreement:
    """One option of a run that is not the paper's value; `ratio` is given / paper."""

    option: str
    given: float
    paper: float
    ratio: float
    sentence: str


def disagreements(given: Mapping[str, Any], stage: Stage) -> list[Disagreement]:
    """The options of a run that differ by more than 0.5% (rounding to three digits) from the paper's.

    A run whose schedule is that of the paper's mixed batch (`follows_mixed_run`) is compared with that.

    Args:
        given: the run's options, by their names without dashes. Names outside CHECKED and values of None
            are ignored.
        stage: from `stage_for_run`.
    """
    different = []
    mixed = follows_mixed_run(given, stage)
    for option in CHECKED:
        value, paper = given.get(option), getattr(stage, option)
        if value is None or _near(value, paper) or (mixed and option in SCHEDULE):
            continue
        shown = f"{paper:.5g}" if isinstance(paper, float) else str(paper)
        sentence = f"--{option} {value} is {value / paper:.3g} times the paper's {shown}"
        if option != "max_predictions_per_seq":
            where = _fitting_row(option, value, stage)
            sentence += f" for {number(stage.sequences_per_step)} sequences a step; {where}"
        different.append(Disagreement(option, value, paper, value / paper, sentence))
    return different


def follows_mixed_run(given: Mapping[str, Any], stage: Stage) -> bool:
    """Tests whether a run of the same batch and stage has the schedule of the paper's mixed 64K/32K run.

    Of steps, learning rate and warmup, which differ from the formula's, those that `given` has are compared.
    """
    sequences, *published = MIXED[stage.stage - 1]
    baseline = PAPER.batch_size * PAPER.steps[stage.stage - 1]
    length = STAGE_LENGTHS[stage.stage - 1]
    here = (stage.sequences_per_step, stage.max_seq_length, stage.baseline_sequences)
    pairs = [(given.get(option), value) for option, value in zip(SCHEDULE, published)]
    chosen = [(value, paper) for value, paper in pairs if value is not None]
    return here == (sequences, length, baseline) and bool(chosen) and all(_near(*pair) for pair in chosen)


def batch_size_hint(batch_size: int, use_avg_len: bool, max_seq_length: int) -> str | None:
    """A sentence where the training scripts' `batch_size` probably counts tokens, else None.

    It does where it would be more than MANY_TOKENS tokens as sequences, and as tokens holds a sequence.
    """
    tokens = batch_size * max_seq_length
    if use_avg_len or tokens <= MANY_TOKENS or batch_size < max_seq_length:
        return None
    return (
        f"--batch_size {batch_size} without --use_avg_len is {batch_size} sequences of {max_seq_length}, "
        f"{tokens} tokens, in one pass of a GPU or process; if it counts tokens, add --use_avg_len"
    )


def _options(stages: Sequence[Stage]) -> str:
    """The options of one run of these stages."""

    def value(name: str) -> str:
        texts = [repr(getattr(stage, name)) for stage in stages]
        return texts[0] if len(set(texts)) == 1 else ",".join(texts)

    return (
        f"--stages {'both' if len(stages) > 1 else stages[0].stage} "
        f"--num_steps {value('num_steps')} --lr {value('lr')} --warmup_ratio {value('warmup_ratio')} "
        f"--batch_size {value('tokens_per_gpu')} --use_avg_len --accumulate {value('accumulate')} "
        f"--max_seq_length {value('max_seq_length')} "
        f"--max_predictions_per_seq {value('max_predictions_per_seq')}"
    )


def _check_sizes(tokens_per_gpu: int, length: int, stage: int | None) -> None:
    flag = "--max_seq_length" if stage is None else f"--max_seq_length_{stage}"
    if length > LONGEST:
        raise InputError(f"{flag} {length}: BERT has positions for {LONGEST} tokens and no more")
    if tokens_per_gpu < length:
        raise InputError(
            f"--tokens_per_gpu (the training scripts' --batch_size) {tokens_per_gpu}: a GPU cannot hold one "
            f"sequence of {length} tokens"
        )


def _source(batch_size: float) -> str:
    if batch_size in ROWS:
        return f"row {batch_size}"
    return "between rows" if ROWS[0] < batch_size < ROWS[-1] else "extrapolated"


def _warnings(stage: int, batch_size: float) -> tuple[str, ...]:
    start = f"stage {stage}: {number(batch_size)} sequences a step"
    warnings = []
    if not ROWS[0] <= batch_size <= ROWS[-1]:
        side = f"below {ROWS[0]}" if batch_size < ROWS[0] else f"above {ROWS[-1]}"
        warnings.append(f"{start} are {side}, where the paper did not train; lr and warmup are extrapolated")
    if batch_size > 163840:
        warnings.append(f"{start} would need more warmup than there are steps; cut to all of them")
    if isinstance(batch_size, float):
        warnings.append(f"{start} are an average: the tokens do not divide into whole sequences")
    return tuple(warnings)


def _plain(exact: Fraction) -> float:
    return int(exact) if exact.denominator == 1 else float(exact)


def number(value: float) -> str:
    """Formats a count: whole, or with two digits where it is an average."""
    return str(value) if isinstance(value, int) else f"{value:.2f}"


def _near(value: float, paper: float) -> bool:
    return abs(value / paper - 1) <= TOLERANCE


def _fitting_row(option: str, value: float, stage: Stage) -> str:
    """Place where `value` is published, which distinguishes a misread row from a typing error."""
    sequences, *published = MIXED[stage.stage - 1]
    if sequences == stage.sequences_per_step and value in published:
        return "it is the published mixed 64K/32K run's"
    for row in ROWS:
        steps = math.ceil(stage.baseline_sequences / row)
        paper = {"num_steps": steps, "lr": scaled_lr(row), "warmup_ratio": scaled_warmup_ratio(row)}[option]
        if _near(value, paper):
            return f"it is the value for {row}"
    return "it fits no row of the paper's table"
