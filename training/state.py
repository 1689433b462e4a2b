"""What a checkpoint holds of a run, taken from its parts and given back to them on every rank.

Rank 0 alone reads and writes: the other ranks, perhaps on hosts that do not see its disk, get everything
from it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from typing import Any

import mxnet as mx
import numpy as np
from gluonnlp.model.bert import BERTModel

from base.errors import InputError, TrainingError
from bert.weights.bare_params import check_index
from bert.weights.params_file import read_array, read_index
from comm.base import Communicator
from data.pretraining.batches import EPOCH_SHIFT
from training.checkpoint import Checkpoint, block_arrays, load_step, newest_complete, save
from training.inputs import Inputs
from training.optimizer.optimizer import Optimizer
from training.optimizer.scaler import DynamicScaler, SkipCounter, StaticScaler

# Those that a data position depends on.
DATA_OPTIONS = (
    "data",
    "raw",
    "text_format",
    "split_sentences",
    "batch_size",
    "use_avg_len",
    "num_buckets",
    "max_seq_length",
    "short_seq_prob",
)


@dataclass
class Found:
    """The checkpoint to continue from, as every rank knows it; `checkpoint` is rank 0's alone."""

    step: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    checkpoint: Checkpoint | None = None


def find_checkpoint(options: argparse.Namespace, communicator: Communicator) -> Found:
    """Looks for the checkpoint that --resume or --start_step asks for; every rank calls it.

    Raises:
        InputError: on rank 0, when --start_step names a checkpoint that is missing or damaged.
    """
    found = Found()
    if communicator.rank == 0:
        if options.start_step:
            found.checkpoint = load_step(options.ckpt_dir, options.start_step, found.messages.append)
        elif options.resume:
            found.checkpoint = newest_complete(options.ckpt_dir, found.messages.append)
        if found.checkpoint is not None:
            found.step = found.checkpoint.step
            found.facts = found.checkpoint.manifest or {}
    found.step, found.facts = broadcast_json([found.step, found.facts], communicator)
    return found


def restore_parameters(found: Found, bert: BERTModel, communicator: Communicator, device: mx.Context) -> None:
    """Gives every rank rank 0's parameters: the checkpoint's, or those it has initialized. To be called
    before the optimizer takes its copies.

    Raises:
        InputError: on rank 0, for parameters of another model, or of a bare .params file that the model's
            dtype cannot hold.
    """
    if found.checkpoint is not None:
        path = found.checkpoint.params_path
        named = bert._collect_params_with_prefix()
        arrays = read_index(path)
        check_index(path, arrays, {name: parameter.shape for name, parameter in named.items()})
        for name, info in arrays.items():
            with np.errstate(over="ignore"):  # what does not fit into float16 is looked for below
                array = read_array(path, info).astype(np.dtype(named[name].dtype), copy=False)
            named[name].set_data(mx.nd.array(array, ctx=device, dtype=array.dtype))
        if found.checkpoint.manifest is None and not _all_finite(list(block_arrays(bert).values())):
            dtypes = {np.dtype(parameter.dtype).name for parameter in named.values()}
            raise InputError(
                f"{path}: it has numbers that are not finite in {' or '.join(sorted(dtypes))}; name a file "
                "that was saved before training diverged, or train with --dtype float32"
            )
    communicator.broadcast(list(block_arrays(bert).values()))


def restore_states(
    found: Found,
    optimizer: Optimizer,
    scaler: StaticScaler | DynamicScaler,
    skips: SkipCounter,
    communicator: Communicator,
) -> None:
    """Gives every rank the checkpoint's optimizer states, loss scale and count of skipped steps, if any.

    Raises:
        InputError: states of another model or dtype.
    """
    if not found.facts:
        return
    if found.checkpoint is not None:
        with found.checkpoint.open_states() as states:
            optimizer.restore(states)
    (optimizer.t,) = broadcast_json([optimizer.t], communicator)
    communicator.broadcast(list(optimizer.state_arrays().values()))
    scaler.restore(found.facts["scaler"])
    skips.restore(found.facts["skips"])


def position_to_continue(found: Found, options: argparse.Namespace, world_size: int) -> tuple[int, list[str]]:
    """The place in the data to go on from (a position of `data.pretraining.batches`), and what to say
    where it cannot be exact."""
    if not found.step:
        return 0, []
    messages = []
    if "blocks" in found.facts:
        position = found.facts["blocks"]
    elif "position" in found.facts:  # of a version that counted each process's own batches
        epoch, batches = divmod(found.facts["position"], 1 << EPOCH_SHIFT)
        position = (epoch << EPOCH_SHIFT) + batches * found.facts["world_size"]
        messages.append(
            "the checkpoint is of an earlier version, which dealt sequences in another order: some of this "
            "epoch may be seen twice or not at all"
        )
    else:
        return found.step * options.accumulate * world_size, []
    saved = found.facts["options"]
    changed = [name for name in DATA_OPTIONS if name in saved and saved[name] != getattr(options, name)]
    if changed:
        messages.append(
            f"--{', --'.join(changed)} differ from the checkpoint's run: some sequences of this epoch may be "
            "seen twice or not at all"
        )
    return position, messages


def changed_options(found: Found, options: argparse.Namespace) -> list[str]:
    """What to say about options that differ from the checkpoint's run, though it goes on all the same."""
    saved = found.facts.get("options", {})
    messages = []
    if options.seed is not None and found.facts.get("seed", options.seed) != options.seed:
        messages.append(
            f"--seed {options.seed}: the checkpoint's run had {found.facts['seed']}; "
            "data order, masks and dropout change from here on"
        )
    if saved.get("optimizer", options.optimizer) != options.optimizer:
        messages.append(
            f"--optimizer {options.optimizer}: the checkpoint's run had {saved['optimizer']}; "
            "its moments are taken over"
        )
    return messages


def save_checkpoint(
    options: argparse.Namespace,
    inputs: Inputs,
    step: int,
    position: int,
    seed: int,
    bert: BERTModel,
    optimizer: Optimizer,
    scaler: StaticScaler | DynamicScaler,
    skips: SkipCounter,
    world_size: int,
) -> Checkpoint:
    """Writes the checkpoint of `step`; rank 0 calls it.

    Raises:
        TrainingError: a parameter is not finite, or it could not be written; earlier checkpoints are intact.
    """
    arrays = block_arrays(bert)
    if not _all_finite(list(arrays.values())):
        raise TrainingError(
            f"a parameter is no longer finite at step {step}, so it is not saved; lower --lr and --resume "
            "from the checkpoint before"
        )
    facts = {
        "model": options.model,
        "vocab_size": inputs.vocab_size,
        "vocab_sha256": inputs.vocabulary.sha256 if inputs.vocabulary else None,
        "world_size": world_size,
        "options": vars(options),
        "scaler": scaler.state(),
        "skips": skips.state(),
        "seed": seed,
        "blocks": position,
    }
    return save(options.ckpt_dir, step, arrays, optimizer.state_views(), facts, keep=options.keep_checkpoints)


def broadcast_json(value: Any, communicator: Communicator) -> Any:
    """Rank 0's `value`, on every rank, through JSON."""
    encoded = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
    length = mx.nd.array([len(encoded)], ctx=mx.cpu(), dtype="int64")
    communicator.broadcast([length])
    text = mx.nd.zeros((int(length.asscalar()),), ctx=mx.cpu(), dtype="uint8")
    if communicator.rank == 0:
        text[:] = mx.nd.array(encoded, ctx=mx.cpu(), dtype="uint8")
    communicator.broadcast([text])
    return json.loads(text.asnumpy().tobytes().decode())


def _all_finite(arrays: list[mx.nd.NDArray]) -> bool:
    # MXNet's operator takes 200 arrays at most and overruns its buffer with more.
    parts = [arrays[start : start + 100] for start in range(0, len(arrays), 100)]
    return all(mx.nd.multi_all_finite(*part, num_arrays=len(part)).asscalar() == 1 for part in parts)
