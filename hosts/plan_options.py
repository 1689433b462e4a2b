"""Options from which a plan of the LAMB paper follows, the same for hparams.py and for the commands that
write a cluster's job. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from base.command_line import pair_of, positive_int
from base.errors import InputError
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


@dataclass(frozen=True)
class PlanOptions:
    """Options of a plan as given; None, or the default: left out. For the meanings see `add_plan_options`.

    `num_gpus`: ranks of the whole run.
    """

    num_gpus: int | None = None
    tokens_per_gpu: PerStage[int] | None = None
    accumulate: PerStage[int] | None = None
    pipeline_stages: int = 1
    target_batch_size: int | None = None
    target_batch_size_2: int | None = None
    mixed_batch: bool = False
    stage: str | None = None
    max_seq_length_1: int | None = None
    max_seq_length_2: int | None = None
    baseline_batch_size: int = PAPER.batch_size
    baseline_steps_1: int = PAPER.steps[0]
    baseline_steps_2: int = PAPER.steps[1]

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
        return replace(self._plan_of_replicas(), num_gpus=self.num_gpus, pipeline_stages=self.pipeline_stages)

    def _plan_of_replicas(self) -> Plan:
        if self.tokens_per_gpu is None:
            raise InputError("--tokens_per_gpu is missing")
        cluster = (self.replicas, self.tokens_per_gpu)
        stages = STAGES[self.stage or "both"]
        given = (self.max_seq_length_1, self.max_seq_length_2)
        if self.mixed_batch:
            if given != (None, None) or self.baseline != PAPER:
                raise InputError("--mixed_batch is a published run: sequence lengths and baseline are fixed")
            return mixed_batch_plan(*cluster, stages)
        lengths = (
            STAGE_LENGTHS[0] if given[0] is None else given[0],
            STAGE_LENGTHS[1] if given[1] is None else given[1],
        )
        recipe = Recipe(stages, lengths, self.baseline)
        if self.target_batch_size is not None:
            return plan_for_target(*cluster, self.target_batch_size, self.target_batch_size_2, recipe)
        return plan(*cluster, 1 if self.accumulate is None else self.accumulate, recipe)


def add_plan_options(cluster: Any, target: Any, recipe: Any) -> None:
    """Adds the options of `PlanOptions`, but for --num_gpus, to a parser's groups: those about the cluster,
    those that go from the batch to the accumulation, and those of the recipe. They may be the same."""
    text = "tokens a GPU takes in one pass; the published p3dn runs had 8192"
    _pair(cluster, "--tokens_per_gpu", text)
    text = "passes added up for one step (default 1); doubled, it is like twice the GPUs"
    _pair(cluster, "--accumulate", text)
    text = "GPUs that share one model's layers and one batch: their number is a multiple"
    _count(cluster, "--pipeline_stages", text, "S", 1)
    _count(target, "--target_batch_size", "sequences wanted in a step, in each stage", "B")
    _count(target, "--target_batch_size_2", "sequences wanted in a step of stage 2, where that differs", "B")
    text = "the paper's fastest run as published: 7038 steps of 65536 sequences, then 1561 of 32768"
    target.add_argument("--mixed_batch", action="store_true", help=text)
    text = "only this stage, or both in one run (default both; with hparams.py --check by the length)"
    recipe.add_argument("--stage", "--stages", choices=sorted(STAGES), help=text)
    _count(recipe, "--max_seq_length_1", "tokens a sequence in stage 1 (default 128)", "L")
    _count(recipe, "--max_seq_length_2", "tokens a sequence in stage 2 (default 512)", "L")
    _count(recipe, "--baseline_batch_size", "sequences in a step of the run to match", "B", PAPER.batch_size)
    _count(recipe, "--baseline_steps_1", "its steps in stage 1", "N", PAPER.steps[0])
    _count(recipe, "--baseline_steps_2", "its steps in stage 2", "N", PAPER.steps[1])


def _pair(group: Any, flag: str, text: str) -> None:
    group.add_argument(flag, type=pair_of(positive_int), metavar="N[,N]", help=text)


def _count(group: Any, flag: str, text: str, metavar: str, default: int | None = None) -> None:
    shown = text if default is None else f"{text} (default {default})"
    group.add_argument(flag, type=positive_int, metavar=metavar, default=default, help=shown)
