"""The run's files: all that can be checked before mxnet is imported and before any work starts, and the data
opened."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any, Sequence

from base.errors import InputError
from base.launchers import launched_rank
from base.progress import Printed
from bert.configuration import named_config, parse_model
from bert.weights.bare_params import DECODER, EMBEDDING, check_index, check_values, expected_shapes
from bert.weights.params_file import read_index
from comm.base import Communicator
from data.opening import (
    INSTANCES,
    NOTHING,
    TEXT,
    DataFiles,
    OpenedData,
    check_instances,
    check_text,
    common_vocabulary,
    named_data,
    open_data,
)
from data.options import MAX_POSITIONS, DataConfig, MaskingConfig
from data.tokenizing.vocab import Vocabulary
from training.checkpoint import list_steps, read_manifest
from training.config import RunConfig
from training.options import PUBLISHED_VOCABULARIES

_LAYER = re.compile(r"encoder\.transformer_cells\.(\d+)\.")


@dataclass(frozen=True)
class Inputs:
    """The run's data, known to exist and to be of the right form. `train` is nothing when random tokens
    (--dummy_data_len) take its place."""

    train: DataFiles
    evaluation: DataFiles
    vocabulary: Vocabulary | None  # None: the one of --dataset_name, to be downloaded, or none needed
    vocab_size: int
    max_seq_length: int
    config: DataConfig = field(default_factory=DataConfig)  # with a cache and the sequence length filled in

    @property
    def reads_text(self) -> bool:
        """Whether something has to be tokenized, for which there must be a vocabulary."""
        return TEXT in (self.train.kind, self.evaluation.kind)


def check_inputs(config: RunConfig) -> Inputs:
    """Opens what the options name. All of the data is checked later, while it is tokenized or converted.

    Raises:
        InputError: a file that is missing, empty or of the wrong form; a checkpoint of another model; a new
            run in a directory that already holds one.
    """
    data = config.data
    train = named_data(data.data, "--data", data.raw)
    evaluation = named_data(data.data_eval, "--data_eval", data.raw and not data.eval_use_npz)
    vocabulary = common_vocabulary(data.tokenizer, train, evaluation)
    vocab_size = len(vocabulary) if vocabulary else PUBLISHED_VOCABULARIES[config.model.dataset_name]
    if data.dummy_data_len:  # of --data only the names count
        train = DataFiles(NOTHING)
    max_seq_length = _check_data(data, train, evaluation)
    _check_checkpoints(config, vocab_size, vocabulary)
    filled = replace(
        data,
        cache_dir=data.cache_dir or os.path.join(config.checkpoint.ckpt_dir, "tokens"),
        masking=replace(data.masking, max_seq_length=max_seq_length),
    )
    return Inputs(train, evaluation, vocabulary, vocab_size, max_seq_length, filled)


def _check_data(config: DataConfig, train: DataFiles, evaluation: DataFiles) -> int:
    """The run's sequence length: of random tokens, as given, of the widest file, or 512.

    Raises InputError for files of another form, files that break a limit, and options that do nothing.
    """
    masking = config.masking
    widths = []
    # Beside text, or random tokens, the options for masks are theirs.
    only_masked = {train.kind, evaluation.kind} - {NOTHING} == {INSTANCES} and not config.dummy_data_len
    for data in (train, evaluation):
        if data.kind == INSTANCES:
            predictions = masking.max_predictions_per_seq if only_masked or data is train else None
            widths.append(check_instances(data.paths, masking.max_seq_length, predictions))
        elif data.kind == TEXT:
            check_text(data.paths)
    default = MaskingConfig()
    for flag in ("whole_word_mask", "masked_lm_prob", "short_seq_prob"):
        if only_masked and getattr(masking, flag) != getattr(default, flag):
            raise InputError(f"--{flag}: files with masks hold theirs already; it needs text or a store")
    # What is not padded may just miss the length that it was made for: 126 tokens mean 128.
    longest = -(-max(widths, default=MAX_POSITIONS) // 8) * 8
    return config.dummy_data_len or masking.max_seq_length or longest


def open_source(inputs: Inputs, data: DataFiles, communicator: Communicator) -> OpenedData:
    """The samples of `data`, one of the two of `inputs`. Every rank calls it.

    Text is tokenized, and files with masks are converted, into the cache by the first rank of each host, with
    all its cores; the others wait, then map the same files. Hosts that share the cache share the work.

    Raises:
        InputError: bad data, with the file and the line or record.
    """
    if communicator.local_rank != 0:
        communicator.barrier()
    cores = os.cpu_count() or 1
    opened = open_data(data, inputs.config, inputs.vocabulary, inputs.vocab_size, cores, Printed())
    if communicator.local_rank == 0:
        communicator.barrier()
    return opened


def _check_checkpoints(config: RunConfig, vocab_size: int, vocabulary: Vocabulary | None) -> None:
    """Checks that a checkpoint to continue is of this model, and that a new run writes over no old one.

    Damaged checkpoints are found, and passed over, later.
    """
    ckpt_dir = config.checkpoint.ckpt_dir
    if os.path.exists(ckpt_dir) and not os.path.isdir(ckpt_dir):
        raise InputError(f"--ckpt_dir {ckpt_dir} is a file; name a directory")
    steps = list_steps(ckpt_dir)
    if not (config.checkpoint.resume or config.checkpoint.start_step):
        if config.data.data or config.data.dummy_data_len:
            _check_unused(ckpt_dir, steps)
        return
    for step in reversed(steps):
        if config.checkpoint.start_step and step != config.checkpoint.start_step:
            continue
        try:
            manifest = read_manifest(ckpt_dir, step)
        except InputError:
            continue
        _check_manifest(config, manifest, vocab_size, vocabulary)
        return
    bare = os.path.join(ckpt_dir, f"{config.checkpoint.start_step:07d}.params")
    if config.checkpoint.start_step and config.checkpoint.start_step not in steps and os.path.isfile(bare):
        _check_parameters(config, bare, vocab_size)


def _check_unused(ckpt_dir: str, steps: Sequence[int]) -> None:
    if steps:
        raise InputError(
            f"--ckpt_dir {ckpt_dir} holds checkpoints up to step {steps[-1]}; "
            "continue them with --resume or name another directory"
        )
    bare = sorted(glob.glob(os.path.join(glob.escape(ckpt_dir), "[0-9]*.params")))
    if bare:
        raise InputError(
            f"--ckpt_dir {ckpt_dir} holds {os.path.basename(bare[-1])}, which this run could overwrite; "
            "continue from it with --start_step or name another directory"
        )


def _check_manifest(
    config: RunConfig, manifest: dict[str, Any], vocab_size: int, vocabulary: Vocabulary | None
) -> None:
    facts = [
        ("model", manifest.get("model"), config.model.model),
        ("vocabulary size", manifest.get("vocab_size"), vocab_size),
    ]
    if vocabulary and manifest.get("vocab_sha256"):  # unknown for npz files and before a download
        facts.append(("vocabulary sha256", manifest["vocab_sha256"][:12], vocabulary.sha256[:12]))
    for name, made_with, wanted in facts:
        if made_with != wanted:
            raise InputError(
                f"--ckpt_dir {config.checkpoint.ckpt_dir}: its checkpoint of step {manifest['step']} has"
                f" {name} {made_with}, this run {wanted}; name the run's own directory, or the model and "
                "vocabulary that it was trained with"
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
    layers, units, _ = parse_model(config.model.model)
    found = (found_layers, *embedding.shape[::-1])
    if found != (layers, units, vocab_size):
        raise InputError(
            f"--start_step {config.checkpoint.start_step}: {path} has {found[0]} layers, {found[1]} units"
            f" and {found[2]} tokens, this run {layers}, {units} and {vocab_size}; name its model and"
            " vocabulary"
        )
    source = f"--start_step {config.checkpoint.start_step}: {path}"
    check_index(source, arrays, expected_shapes(named_config(config.model.model), vocab_size))
    if launched_rank(os.environ) == 0:  # the others get the numbers from it
        check_values(source, path, arrays)
