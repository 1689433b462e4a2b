"""The checkpoints of a run's own directory, checked before MXNet is imported: of this model, or none yet."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from typing import Any

from base.errors import InputError
from base.launchers import launched_rank
from bert.configuration import recorded_config
from bert.weights.bare_params import check_index, check_values, expected_shapes
from bert.weights.names import DECODER, EMBEDDING
from bert.weights.params_file import read_index
from training.checkpoint import list_steps, read_manifest
from training.config import RunConfig
from training.initial import Wanted
from training.stages import missing_stage_1, stage_to_continue

_LAYER = re.compile(r"encoder\.transformer_cells\.(\d+)\.")


def check_checkpoints(config: RunConfig, wanted: Wanted, trains: bool) -> None:
    """Checks that a checkpoint to continue is of this model, and that a new run writes over no old one.

    Damaged checkpoints are found, and passed over, later. `trains`: whether the run trains.

    Raises:
        InputError: naming the directory and what is wrong with it.
    """
    ckpt_dir = config.checkpoint.ckpt_dir
    if os.path.exists(ckpt_dir) and not os.path.isdir(ckpt_dir):
        raise InputError(f"--ckpt_dir {ckpt_dir} is a file; name a directory")
    steps = list_steps(ckpt_dir)
    place, follows = config.checkpoint, config.start.follows_stage_1
    if not (place.resume or place.start_step or follows):
        if trains:
            check_new(config)
        return
    manifest = newest_manifest(ckpt_dir, place.start_step)
    if manifest is not None:
        _check_manifest(config, manifest, wanted)
        if stage_to_continue(config, manifest) == manifest.get("stage") and not (
            place.resume or place.start_step
        ):
            _check_unused(config)  # --stages 2 with steps of its own
        return
    if follows and launched_rank(os.environ) == 0:  # the others may not see the disk
        raise missing_stage_1(config)
    bare = os.path.join(ckpt_dir, f"{place.start_step:07d}.params")
    if place.start_step and place.start_step not in steps and os.path.isfile(bare):
        _check_parameters(config, bare, wanted.vocab_size)


def newest_manifest(ckpt_dir: str, chosen: int = 0) -> dict[str, Any] | None:
    """The newest readable manifest of those to continue from, or that of step `chosen`; None where there is
    none."""
    for step in reversed(list_steps(ckpt_dir)):
        if chosen in (0, step):
            with contextlib.suppress(InputError):
                return read_manifest(ckpt_dir, step)
    return None


def continues(config: RunConfig) -> bool:
    """Whether a checkpoint in --ckpt_dir seems to be there for --resume, which wins over --init_from."""
    return config.checkpoint.resume and bool(list_steps(config.checkpoint.ckpt_dir))


def check_new(config: RunConfig) -> None:
    """Raises InputError where a run that begins anew, and does not go on from a checkpoint of its directory,
    would write over those that are there."""
    place = config.checkpoint
    if not (place.resume or place.start_step or config.start.follows_stage_1):
        _check_unused(config)


def _check_unused(config: RunConfig) -> None:
    ckpt_dir = config.checkpoint.ckpt_dir
    steps = list_steps(ckpt_dir)
    if steps:
        remedy = "continue them with --resume or name another directory"
        if config.options.get("only_predict"):
            remedy = "name another directory for the results of --only_predict"
        raise InputError(f"--ckpt_dir {ckpt_dir} holds checkpoints up to step {steps[-1]}; {remedy}")
    bare = sorted(glob.glob(os.path.join(glob.escape(ckpt_dir), "[0-9]*.params")))
    if bare:
        raise InputError(
            f"--ckpt_dir {ckpt_dir} holds {os.path.basename(bare[-1])}, which this run could overwrite; "
            "continue from it with --start_step or name another directory"
        )


def _check_manifest(config: RunConfig, manifest: dict[str, Any], wanted: Wanted) -> None:
    ckpt_dir, step = config.checkpoint.ckpt_dir, manifest["step"]
    saved = recorded_config(manifest, f"--ckpt_dir {ckpt_dir}: its checkpoint of step {step}")
    facts = [
        ("model", saved.description, config.model.bert.description),
        ("vocabulary size", manifest.get("vocab_size"), wanted.vocab_size),
    ]
    vocabulary = wanted.vocabulary
    if vocabulary and manifest.get("vocab_sha256"):  # unknown for npz files and before a download
        facts.append(("vocabulary sha256", manifest["vocab_sha256"][:12], vocabulary.sha256[:12]))
    for name, made_with, needed in facts:
        if made_with != needed:
            raise InputError(
                f"--ckpt_dir {ckpt_dir}: its checkpoint of step {step} has {name} {made_with}, this run "
                f"{needed}; name the run's own directory, or the model and vocabulary that it was trained "
                "with"
            )


def _check_parameters(config: RunConfig, path: str, vocab_size: int) -> None:
    """A .params file without a manifest: its model, then every parameter."""
    arrays = read_index(path)
    found_layers = len({match[1] for match in map(_LAYER.match, arrays) if match})
    embedding = arrays.get(EMBEDDING, arrays.get(DECODER))
    if embedding is None or len(embedding.shape) != 2 or not found_layers:
        raise InputError(
            f"--start_step {config.checkpoint.start_step}: {path} is no BERT with GluonNLP's parameter names"
        )
    layers, units = config.model.bert.layers, config.model.bert.units
    found = (found_layers, *embedding.shape[::-1])
    if found != (layers, units, vocab_size):
        raise InputError(
            f"--start_step {config.checkpoint.start_step}: {path} has {found[0]} layers, {found[1]} units "
            f"and {found[2]} tokens, this run {layers}, {units} and {vocab_size}; name its model and "
            "vocabulary"
        )
    source = f"--start_step {config.checkpoint.start_step}: {path}"
    tied = config.model.bert.tied
    check_index(source, arrays, expected_shapes(config.model.bert, vocab_size), tied)
    if launched_rank(os.environ) == 0:  # the others get the numbers from it
        check_values(source, arrays, tied)
