"""The beginning of a run, as one value: the decision, which rank 0 makes before MXNet is imported, and what
follows from it: the place in the data, the processes that count, options that differ from the checkpoint's.

A run goes on from a checkpoint of its own directory, takes the parameters of --init_from or published ones,
or begins with random numbers. Two stages share a directory and count their steps through: stage 2's first
step follows stage 1's last. The manifest of a checkpoint has `stage`, `begun` (the step after which the stage
began), `num_steps` (its own, as planned; null where hours end it) and `ended`.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from base.errors import InputError
from base.failures import kept_in_memory
from base.launchers import launched_rank
from bert.configuration import recorded_config
from bert.weights.bare_params import check_index, check_values, expected_shapes
from bert.weights.names import DECODER, EMBEDDING, layer_of
from bert.weights.params_file import read_index
from training.checkpoint import Checkpoint, list_steps, load_step, newest_complete, read_manifest
from training.config import OptimizationConfig, RunConfig
from training.start.initial import Initial, Wanted
from training.start.options import DATA, OPTIMIZER, RESETS, SCHEDULE


@dataclass(frozen=True)
class Start:
    """The beginning of a run, or of one of its stages, as every rank knows it.

    A fresh run has neither `facts` nor `source` nor `published`. One that begins with parameters has a
    `source`, and `facts` where it takes over more than these. One that resumes has the `facts` of its own
    directory's checkpoint.

    Attributes:
        step: steps taken before; 0 for a fresh run.
        begun: those of them before the schedule began: 0, or stage 1's last step in stage 2.
        stage: the stage to go on with; None for a run without stages.
        facts: the checkpoint's manifest; empty for a fresh run, for bare parameters, and where nothing but
            parameters is taken over.
        resets: of `RESETS`, what is not taken over from the checkpoint.
        source: the name of the parameters of --init_from for people; None without.
        published: the vocabulary's name of the published parameters to begin with; None for others.
        lacks_evaluation: whether the run was killed between saving the checkpoint and the evaluation that
            belongs to it.
        processes: those that --accumulate counts for.
        position: in the data, of the feed. exact: whether what follows there is what the checkpoint's run
            would have had; losses may be others where not.
        messages, checkpoint, initial: rank 0's alone: sentences for people; where parameters and states are
            read from; the parameters of --init_from.
        seen, again: rank 0's alone: the directory as it was when this was decided, and the decision made
            anew. On other ranks nothing is decided before rank 0 tells them.
    """

    step: int = 0
    begun: int = 0
    stage: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    resets: frozenset[str] = frozenset()
    source: str | None = None
    published: str | None = None
    lacks_evaluation: bool = False
    processes: int = 1
    position: int = 0
    exact: bool = True
    messages: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    initial: Initial | None = None
    seen: Any = field(default=None, compare=False)
    again: Callable[[], Start] | None = field(default=None, compare=False)

    @property
    def begins_stage_2(self) -> bool:
        """Whether the next step is the first of stage 2."""
        return self.stage == 2 and self.step == self.begun

    def keeps(self, what: str) -> bool:
        """Whether a checkpoint's states of this kind (of `RESETS`) are taken over."""
        return bool(self.facts) and what not in self.resets


def data_seed(seed: int, stage: int | None) -> int:
    """The seed of a stage's data order, pairs and masks: the run's own but for stage 2, so that no epoch of
    stage 2 repeats the draws of one in stage 1."""
    if stage != 2:
        return seed
    return int(np.random.SeedSequence([seed, stage]).generate_state(1, np.uint64)[0])


def position_to_continue(
    start: Start, options: Mapping[str, Any], world_size: int, data_options: Sequence[str]
) -> tuple[int, list[str]]:
    """The place in the data to go on from (a position of the feed), and messages where it cannot be exact.

    `options`: of this run, by name; `data_options`: those that a position depends on.
    """
    if DATA in start.resets or not (start.step or start.facts):
        return 0, []
    if not start.facts:
        return start.step * options["accumulate"] * world_size, []
    saved = start.facts["options"]
    changed = [name for name in data_options if name in saved and saved[name] != options[name]]
    messages = []
    if changed:
        messages.append(
            f"--{', --'.join(changed)} differ from the checkpoint's run: some sequences of this epoch may "
            "be seen twice or not at all"
        )
    return start.facts["blocks"], messages


def processes_to_count(start: Start, config: RunConfig, world_size: int) -> int:
    """Processes that --accumulate counts for. They are those that the run began with, so that a step keeps
    its sequences when the run goes on with another number; a new schedule counts for `world_size`, the
    present ones."""
    same_launch = start.begins_stage_2 and config.start.stages == "both"
    if not (start.keeps(SCHEDULE) or (start.facts and same_launch)):
        return world_size
    return int(start.facts.get("processes") or start.facts.get("world_size") or world_size)


def changed_options(start: Start, config: RunConfig) -> list[str]:
    """Messages about options that differ from the checkpoint's run, though it goes on all the same."""
    saved = start.facts.get("options", {})
    messages = []
    seed = config.optimization.seed
    if seed is not None and start.facts.get("seed", seed) != seed:
        messages.append(
            f"--seed {seed}: the checkpoint's run had {start.facts['seed']}; data order, masks and dropout "
            "change from here on"
        )
    for name, more in (
        ("optimizer", "; its moments are taken over"),
        ("optimizer_state", "; its moments are converted"),
        *((number, "") for number in ("beta1", "beta2", "epsilon", "weight_decay")),
    ):
        value = getattr(config.optimization, name)
        before = saved.get(name, getattr(OptimizationConfig, name))  # older runs had the defaults
        if saved and before != value and start.keeps(OPTIMIZER):
            now, then = (each if isinstance(each, str) else f"{each:g}" for each in (value, before))
            messages.append(f"--{name} {now}: the checkpoint's run had {then}{more}")
    batch = config.batch
    accumulate = saved.get("accumulate", batch.accumulate)
    if accumulate != batch.accumulate and start.keeps(SCHEDULE):
        messages.append(
            f"--accumulate {batch.accumulate}: the checkpoint's run had {accumulate}; from here on a step "
            f"has {batch.micro_batches} micro-batches, not {accumulate * batch.processes}"
        )
    hours = config.optimization.budget_hours
    if hours and start.facts and "training_s" not in start.facts:
        messages.append(
            f"--budget_hours {hours:g}: the checkpoint does not say how long its run trained: 0 s"
        )
    return messages


def with_consequences(start: Start, config: RunConfig, world_size: int, data_options: Sequence[str]) -> Start:
    """The start with all that follows from it for the settings `config` over `world_size` processes, or
    replicas: processes, position, and messages about changes. `data_options`: as `position_to_continue`."""
    processes = processes_to_count(start, config, world_size)
    config = replace(config, batch=replace(config.batch, processes=processes))
    position, inexact = position_to_continue(start, config.options, processes, data_options)
    messages = (*start.messages, *changed_options(start, config), *inexact)
    return replace(start, processes=processes, position=position, exact=not inexact, messages=messages)


_NEEDED = ("options", "scaler", "skips", "blocks")  # entries of a manifest
_NUMBERED = re.compile(r"\d+\.(params|states\.npz|json|aside)")

FindInitial = Callable[[], "Initial | None"]


def check_start(config: RunConfig, wanted: Wanted, find_initial: FindInitial) -> Start:
    """Decides how the run begins. Every rank calls it; those but rank 0, which perhaps do not see its disk,
    look at nothing.

    Args:
        config: of the run's first stage.
        wanted: its model, with which checkpoints are compared.
        find_initial: finds the parameters of --init_from, None without the option; called where they are
            needed.

    Raises:
        InputError: naming the directory and what is wrong with it; as `find_initial`.
    """

    def decided() -> Start:
        seen = look(config.checkpoint.ckpt_dir)
        return replace(decide(config, wanted, find_initial), seen=seen, again=decided)

    return Start(again=decided) if launched_rank(os.environ) else decided()


def decide(config: RunConfig, wanted: Wanted, find_initial: FindInitial) -> Start:
    """`check_start` on rank 0."""
    place, ckpt_dir = config.checkpoint, config.checkpoint.ckpt_dir
    # Whether the run is a stage 2 that needs the end of stage 1 in its own directory.
    follows = config.start.stages == "2" and config.start.init_from is None
    messages: list[str] = []
    checkpoint = None
    if os.path.exists(ckpt_dir) and not os.path.isdir(ckpt_dir):
        raise InputError(f"--ckpt_dir {ckpt_dir} is a file; name a directory")
    if place.start_step or place.resume or follows:
        newest = newest_manifest(ckpt_dir, place.start_step)
        if newest is not None:
            _check_model(config, newest, wanted)  # before files of gigabytes are read
        if place.start_step:
            checkpoint = load_step(ckpt_dir, place.start_step)
        else:
            checkpoint = newest_complete(ckpt_dir, messages.append)
    elif wanted.trains:
        _check_unused(config)
    if checkpoint is not None:
        if checkpoint.manifest is None:
            path = checkpoint.params_path
            messages.append(f"{path} has no manifest: the optimizer's states start from zero")
            _check_bare(config, checkpoint, wanted.vocab_size)
        start = continuing(config, checkpoint)
        if follows and not (place.resume or place.start_step or start.begins_stage_2):
            _check_unused(config)  # --stages 2 with steps of its own
    elif follows:
        raise InputError(
            f"--stages 2: --ckpt_dir {ckpt_dir} has no complete checkpoint of stage 1; train it there with "
            "--stages 1 or both, or name the parameters with --init_from"
        )
    elif config.start.init_from and place.resume and list_steps(ckpt_dir):
        raise InputError(
            f"--ckpt_dir {ckpt_dir}: none of its checkpoints is complete "
            f"({messages[0] if messages else 'they have vanished'}); name another directory, or remove them "
            f"to begin again with --init_from {config.start.init_from}"
        )
    else:
        if place.resume and wanted.trains:
            # A save that was cut off has left its states, too.
            _check_bare_files(ckpt_dir, without=(".states.npz", ".json"))
        start = _with_parameters(config, find_initial())
    lacking = [name for name in _NEEDED if start.facts and name not in start.facts]
    if lacking:
        raise InputError(
            f"the manifest of step {start.facts['step']} has no {' and no '.join(lacking)}, and a run cannot "
            "go on with it; name another one with --start_step, or take its parameters with --init_from"
        )
    return replace(start, messages=(*messages, *start.messages))


def continuing(config: RunConfig, checkpoint: Checkpoint) -> Start:
    """The start from a checkpoint of the run's own directory.

    Raises:
        InputError: the checkpoint is not of a run with these stages.
    """
    facts = checkpoint.manifest or {}
    stage = _stage_to_continue(config, facts)
    start = Start(checkpoint.step, facts.get("begun", 0), stage, facts, checkpoint=checkpoint)
    if stage != facts.get("stage"):
        kept = {OPTIMIZER} if config.start.keep_optimizer_state else frozenset()
        return replace(start, begun=checkpoint.step, resets=frozenset(RESETS) - kept)
    return replace(start, resets=config.start.resets) if config.checkpoint.start_step else start


def _with_parameters(config: RunConfig, initial: Initial | None) -> Start:
    """The start without a checkpoint of the run's own: at step 0, unless the schedule of the checkpoint that
    --init_from names is continued."""
    stage, resets = config.start.stage, config.start.resets
    if initial is None:
        return Start(stage=stage, published=config.model.dataset_name if config.model.pretrained else None)
    start = Start(
        stage=stage,
        resets=resets,
        source=initial.source,
        messages=tuple(initial.messages),
        initial=initial,
    )
    if initial.checkpoint is None or resets == frozenset(RESETS):
        return start
    facts = initial.checkpoint.manifest or {}
    start = replace(start, checkpoint=initial.checkpoint, facts=facts)
    if not start.keeps(SCHEDULE):
        return start
    if facts.get("stage") != stage:
        there = f"stage {facts['stage']}" if facts.get("stage") else "a run without stages"
        raise InputError(
            f"--init_from {config.start.init_from}: its schedule is that of {there}; reset it with "
            f"--reset {','.join(name for name in RESETS if name in {*resets, SCHEDULE})}"
        )
    return replace(start, step=facts["step"], begun=facts.get("begun", 0))


def _stage_to_continue(config: RunConfig, facts: Mapping[str, Any]) -> int | None:
    """The stage that a run goes on with after a checkpoint of its own directory, with the manifest `facts`;
    None for a run without stages. Raises InputError as `continuing`."""
    stages, place, given = config.start.stages, config.checkpoint.ckpt_dir, config.optimization
    stage, ended = facts.get("stage"), bool(facts.get("ended"))
    if facts:
        there = f"--ckpt_dir {place}: its checkpoint of step {facts['step']}"
        elsewhere = f"start from it with --init_from {place}:{facts['step']} and another --ckpt_dir"
    else:
        there, elsewhere = f"--ckpt_dir {place}: its .params file", "name it with --init_from"
    if stages is None:
        if stage is not None and config.trains:
            raise InputError(f"{there} is of stage {stage}; go on with --stages, or {elsewhere}")
        return None
    if stage is None:
        raise InputError(f"--stages {stages}: {there} is of a run without stages; {elsewhere}")
    if stage == 2 and stages == "1":
        raise InputError(f"--stages 1: {there} is of stage 2 already; go on with --stages 2 or both")
    taken = facts["step"] - facts.get("begun", 0)
    if ended and config.start.stage == stage:
        # Unless this run gives the stage other steps or passes, or more hours. Planned steps that follow from
        # the number of processes may differ now; the stage has ended all the same.
        if given.budget_hours is not None:
            ended = facts["training_s"] >= given.budget_hours * 3600
        else:
            ended = given.num_steps in (None, taken)
            if given.num_epochs is not None:
                ended = ended and facts["options"].get("num_epochs") == given.num_epochs
    if stage == 1 and stages == "2" and not ended:
        planned = facts["num_steps"]
        far = f"{taken} of {planned} steps" if planned else f"{facts['training_s'] / 3600:.3g} hours"
        raise InputError(
            f"--stages 2: {there} is of stage 1, which has not ended ({far}); end it with --stages 1 or "
            "both, and --resume"
        )
    if stage == 1 and stages == "2" and config.start.init_from:
        raise InputError(
            f"--init_from {config.start.init_from}: {there} is the end of stage 1, which stage 2 would go "
            "on from; leave --init_from out, or name another --ckpt_dir"
        )
    return 2 if stage == 1 and ended and stages != "1" else stage


def look(ckpt_dir: str) -> frozenset[tuple[Any, ...]]:
    """The files of checkpoints in a directory as they are now: another value once one has changed."""
    found = []
    if os.path.isdir(ckpt_dir):
        for entry in os.scandir(ckpt_dir):
            if _NUMBERED.fullmatch(entry.name):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((entry.name, status.st_size, status.st_mtime_ns, status.st_ino))
    return frozenset(found)


def newest_manifest(ckpt_dir: str, chosen: int = 0) -> dict[str, Any] | None:
    """The newest readable manifest of those to continue from, or that of step `chosen`; None where there is
    none."""
    for step in reversed(list_steps(ckpt_dir)):
        if chosen in (0, step):
            with contextlib.suppress(InputError):
                return read_manifest(ckpt_dir, step)
    return None


def _check_unused(config: RunConfig) -> None:
    """Raises InputError where a run that begins anew would write over checkpoints of its directory."""
    ckpt_dir = config.checkpoint.ckpt_dir
    steps = list_steps(ckpt_dir)
    if steps:
        remedy = "continue them with --resume or name another directory"
        if config.options.get("only_predict"):
            remedy = "name another directory for the results of --only_predict"
        raise InputError(f"--ckpt_dir {ckpt_dir} holds checkpoints up to step {steps[-1]}; {remedy}")
    memory = kept_in_memory(ckpt_dir)
    if memory is not None and list_steps(memory):
        raise InputError(
            f"--ckpt_dir {ckpt_dir}: this host's memory, {memory}, holds its checkpoint of step "
            f"{list_steps(memory)[-1]}; continue it with --resume, or remove that folder"
        )
    _check_bare_files(ckpt_dir)


def _check_bare_files(ckpt_dir: str, without: Sequence[str] = ()) -> None:
    """Raises InputError for .params files, those `without` such files of their steps, which a run that begins
    anew would write over."""
    names = {name for name, *_ in look(ckpt_dir)}
    bare = sorted(name for name in names if name.endswith(".params"))
    bare = [each for each in bare if names.isdisjoint(each.replace(".params", end) for end in without)]
    if bare:
        raise InputError(
            f"--ckpt_dir {ckpt_dir} holds {bare[-1]}, which this run could overwrite; continue from it with "
            "--start_step or name another directory"
        )


def _check_model(config: RunConfig, manifest: dict[str, Any], wanted: Wanted) -> None:
    """Raises InputError where a checkpoint of the directory has another model or vocabulary."""
    there = f"--ckpt_dir {config.checkpoint.ckpt_dir}: its checkpoint of step {manifest['step']}"
    facts = [
        ("model", recorded_config(manifest, there).description, config.model.bert.description),
        ("vocabulary size", manifest.get("vocab_size"), wanted.vocab_size),
    ]
    vocabulary = wanted.vocabulary
    if vocabulary and manifest.get("vocab_sha256"):  # unknown for npz files and before a download
        facts.append(("vocabulary sha256", manifest["vocab_sha256"][:12], vocabulary.sha256[:12]))
    for name, made_with, needed in facts:
        if made_with != needed:
            raise InputError(
                f"{there} has {name} {made_with}, this run {needed}; name the run's own directory, or the "
                "model and vocabulary that it was trained with"
            )


def _check_bare(config: RunConfig, checkpoint: Checkpoint, vocab_size: int) -> None:
    """Looks at a .params file without a manifest: its model, then every parameter and number. Raises
    InputError."""
    path, bert = checkpoint.params_path, config.model.bert
    source = f"--start_step {config.checkpoint.start_step}: {path}"
    arrays = read_index(path)
    layers = len({layer_of(name) for name in arrays} - {None})
    embedding = arrays.get(EMBEDDING, arrays.get(DECODER))
    if embedding is None or len(embedding.shape) != 2 or not layers:
        raise InputError(f"{source} is no BERT with GluonNLP's parameter names")
    tokens, units = embedding.shape
    if (layers, units, tokens) != (bert.layers, bert.units, vocab_size):
        raise InputError(
            f"{source} has {layers} layers, {units} units and {tokens} tokens, this run {bert.layers}, "
            f"{bert.units} and {vocab_size}; name its model and vocabulary"
        )
    check_index(source, arrays, expected_shapes(bert, vocab_size), bert.tied)
    check_values(source, arrays, bert.tied)
