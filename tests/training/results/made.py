"""Results as files, without the runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Mapping

from training.results.members import Member, Plan, members_of, write_plan
from training.results.record import FINISHED, Result, Speed, write_result

MACHINE = {"cpu": "Xeon", "cores": 2, "memory_gib": 16.0}
PRETRAINED = Result(
    task="pretraining", model="bert_12_768_12", backend="horovod", world_size=8, hosts=1, device="cpu",
    dtype="float32", machine=MACHINE, options={"lr": 0.01, "seed": 0}, seed=0, max_seq_length=128,
    batch_size=64, num_steps=100, status=FINISHED, steps=100, speed=Speed(100.0, 9000.0, 0.64, 64.0),
    wall_s=90.0, loss=5.5, main_score="mlm_loss", higher_is_better=False, parameters="aa",
)  # fmt: skip
TUNED = replace(
    PRETRAINED, task="squad", data="SQuAD 1.1", max_seq_length=384, batch_size=32, epochs=2.0, loss=0.9,
    main_score="f1", higher_is_better=True, began_with="aa", parameters="ff",
)  # fmt: skip


def written(folder: Path, result: Result, **changes: Any) -> str:
    """A run's folder with these results."""
    folder.mkdir(parents=True, exist_ok=True)
    write_result(str(folder), replace(result, **changes))
    return str(folder)


def seeds(folder: Path, scores: Mapping[int, float], result: Result = TUNED, **changes: Any) -> str:
    """A folder of --seeds whose members have these scores."""
    members = members_of(tuple(scores) if len(scores) > 1 else 1, None, None)
    folder.mkdir(parents=True, exist_ok=True)
    write_plan(str(folder), Plan(members))
    for member in members:
        of_seed(folder, member, result, scores[member.seed], **changes)
    return str(folder)


def of_seed(folder: Path, member: Member, result: Result, score: float, **changes: Any) -> None:
    """The results of one member."""
    options = {**result.options, **member.setting, "seed": member.seed}
    figures = {str(result.main_score): score, "exact_match": score - 7}
    written(folder / member.name, result, seed=member.seed, options=options, scores=figures, **changes)
