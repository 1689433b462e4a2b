"""The checkpoints of a run's own directory: of this model, or none yet. MXNet is not imported."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any

from base.errors import InputError
from bert.configuration import recorded_config
from bert.weights.bare_params import check_index, check_values, expected_shapes
from bert.weights.names import DECODER, EMBEDDING
from bert.weights.params_file import read_index
from training.checkpoint import Checkpoint, list_steps, read_manifest
from training.config import RunConfig
from training.start.initial import Wanted

_LAYER = re.compile(r"encoder\.transformer_cells\.(\d+)\.")
_NUMBERED = re.compile(r"\d+\.(params|states\.npz|json|aside)")


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


def check_unused(config: RunConfig) -> None:
    """Raises InputError where a run that begins anew would write over checkpoints of its directory."""
    ckpt_dir = config.checkpoint.ckpt_dir
    steps = list_steps(ckpt_dir)
    if steps:
        remedy = "continue them with --resume or name another directory"
        if config.options.get("only_predict"):
            remedy = "name another directory for the results of --only_predict"
        raise InputError(f"--ckpt_dir {ckpt_dir} holds checkpoints up to step {steps[-1]}; {remedy}")
    bare = sorted(name for name, *_ in look(ckpt_dir) if name.endswith(".params"))
    if bare:
        raise InputError(
            f"--ckpt_dir {ckpt_dir} holds {bare[-1]}, which this run could overwrite; continue from it with "
            "--start_step or name another directory"
        )


def check_model(config: RunConfig, manifest: dict[str, Any], wanted: Wanted) -> None:
    """Raises InputError where a checkpoint of the directory has another model or vocabulary."""
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


def check_bare(config: RunConfig, checkpoint: Checkpoint, vocab_size: int) -> None:
    """Looks at a .params file without a manifest: its model, then every parameter and number. Raises
    InputError."""
    path, bert = checkpoint.params_path, config.model.bert
    source = f"--start_step {config.checkpoint.start_step}: {path}"
    arrays = read_index(path)
    layers = len({match[1] for match in map(_LAYER.match, arrays) if match})
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
