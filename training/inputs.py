"""The run's files: all that can be checked before mxnet is imported and before any work starts, and the data
opened."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any, Iterable, NamedTuple, Sequence

from base.errors import InputError
from base.launchers import launched_rank
from base.progress import Printed
from bert.configuration import recorded_config
from bert.weights.bare_params import check_index, check_values, expected_shapes
from bert.weights.names import DECODER, EMBEDDING
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
from lamb_paper import STAGE_LENGTHS
from training.checkpoint import list_steps, read_manifest
from training.config import RunConfig
from training.initial import Initial, Wanted, find_initial
from training.options import PUBLISHED_VOCABULARIES
from training.saved_vocabulary import check_room
from training.stages import length_message, missing_stage_1, stage_to_continue

MOST_PADDING = 128  # rows more than tokens: NVIDIA pads to multiples of 8, for its matrix units, others to 64
_LAYER = re.compile(r"encoder\.transformer_cells\.(\d+)\.")


@dataclass(frozen=True)
class Inputs:
    """The run's data, known to exist and to be of the right form, and the parameters that it begins with.

    `train` is nothing when random tokens (--dummy_data_len) take its place. `initial` is rank 0's alone.
    """

    train: DataFiles
    evaluation: DataFiles
    vocabulary: Vocabulary | None  # None: the one of --dataset_name, to be downloaded, or none needed
    vocab_size: int  # rows of the model's word embedding
    max_seq_length: int
    config: DataConfig = field(default_factory=DataConfig)  # with a cache and the sequence length filled in
    initial: Initial | None = None  # of --init_from
    messages: tuple[str, ...] = ()  # warnings for people

    @property
    def reads_text(self) -> bool:
        """Whether something has to be tokenized, for which there must be a vocabulary."""
        return TEXT in (self.train.kind, self.evaluation.kind)


class Part(NamedTuple):
    """A stage of a run, or a run without stages: its settings and its checked inputs."""

    config: RunConfig
    inputs: Inputs


def check_parts(configs: Iterable[RunConfig]) -> list[Part]:
    """The stages of a run, in order, or the run itself, each with its inputs checked.

    Raises:
        InputError: as `check_inputs`; or stages that do not fit together.
    """
    parts = [Part(config, check_inputs(config)) for config in configs]
    if len(parts) == 2:
        (_, first), (config, second) = parts
        _check_files_of_both(config, second)
        words = [(part.inputs.vocab_size, getattr(part.inputs.vocabulary, "sha256", None)) for part in parts]
        if words[0] != words[1]:
            raise InputError(
                "--data and --data_2 have different vocabularies; both stages train one model, with one "
                "vocabulary"
            )
        message = length_message((first.max_seq_length, second.max_seq_length))
        parts[0] = Part(parts[0].config, replace(first, messages=(message,) if message else ()))
    return parts


def check_inputs(config: RunConfig) -> Inputs:
    """Opens what the options name. All of the data is checked later, while it is tokenized or converted.

    Raises:
        InputError: a file that is missing, empty or of the wrong form; a checkpoint of another model; a new
            run in a directory that already holds one; parameters to begin with that do not fit.
    """
    data = config.data
    train = named_data(data.data, "--data", data.raw)
    evaluation = named_data(data.data_eval, "--data_eval", data.raw and not data.eval_use_npz)
    vocabulary = common_vocabulary(data.tokenizer, train, evaluation)
    reads_text = TEXT in (train.kind, evaluation.kind)
    vocab_size = _embedding_rows(config, vocabulary, reads_text)
    if data.dummy_data_len:  # of --data only the names count
        train = DataFiles(NOTHING)
    max_seq_length = _check_data(config, train, evaluation)
    initial = None
    if config.start.is_first:
        _check_checkpoints(config, vocab_size, vocabulary)
        # The others get the numbers from rank 0, and may not see its disk.
        if launched_rank(os.environ) == 0:
            if config.start.init_from and not _continues(config):
                initial = find_initial(config.start, Wanted(config.model.bert, vocab_size, vocabulary))
            check_room(config.checkpoint.ckpt_dir, vocabulary, data.tokenizer)
    filled = replace(
        data,
        cache_dir=data.cache_dir or os.path.join(config.checkpoint.ckpt_dir, "tokens"),
        masking=replace(data.masking, max_seq_length=max_seq_length),
    )
    return Inputs(train, evaluation, vocabulary, vocab_size, max_seq_length, filled, initial)


def _check_files_of_both(config: RunConfig, inputs: Inputs) -> None:
    """Files with masks are made for one length. Raises InputError where stage 2 has stage 1's."""
    for flag, data in (("data", inputs.train), ("data_eval", inputs.evaluation)):
        if data.kind == INSTANCES and not config.options[f"{flag}_2"]:
            raise InputError(
                f"--stages both: --{flag} names files with masks, which are made for one length; name stage "
                f"2's with --{flag}_2 (text and token stores serve both stages)"
            )


def _embedding_rows(run: RunConfig, vocabulary: Vocabulary | None, reads_text: bool) -> int:
    """Rows of the model's word embedding: as many as the vocabulary has tokens, or a few more.

    Raises InputError where --config_file has a number that is neither.
    """
    wanted, name = run.model.vocab_size, run.model.dataset_name
    tokens = len(vocabulary) if vocabulary else PUBLISHED_VOCABULARIES[name]
    if wanted is None:
        return tokens
    if vocabulary is None and not reads_text:  # then --dataset_name is no more than a default
        return wanted
    if not tokens <= wanted < tokens + MOST_PADDING:
        flag = f"{run.data.tokenizer.flag} has" if vocabulary else f"--dataset_name {name} has"
        raise InputError(
            f"--config_file {run.model.source}: vocab_size is {wanted}, but {flag} {tokens} tokens; name "
            f"the model's vocabulary (vocab_size may be greater by padding, fewer than {MOST_PADDING} rows)"
        )
    return wanted


def _check_data(run: RunConfig, train: DataFiles, evaluation: DataFiles) -> int:
    """The run's sequence length: of random tokens, as given, of the widest file, or the model's, at most 512
    and in stage 1 at most 128.

    Raises InputError for files of another form, files that break a limit, and options that do nothing.
    """
    config, masking = run.data, run.data.masking
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
    positions, stage = run.model.bert.positions, run.start.stage
    usual = STAGE_LENGTHS[stage - 1] if stage else MAX_POSITIONS
    longest = -(-max(widths, default=min(positions, usual)) // 8) * 8
    for flag, length in (
        ("--dummy_data_len", config.dummy_data_len),
        ("--max_seq_length", masking.max_seq_length),
        ("--data: sequences of", max(widths, default=0)),
    ):
        if length and length > positions:
            raise InputError(
                f"{flag} {length}: --config_file {run.model.source} has max_position_embeddings "
                f"{positions}; take shorter sequences or another model"
            )
    return config.dummy_data_len or masking.max_seq_length or min(longest, positions)


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
    tokens = len(inputs.vocabulary) if inputs.vocabulary else inputs.vocab_size
    opened = open_data(data, inputs.config, inputs.vocabulary, tokens, cores, Printed())
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
    place, follows = config.checkpoint, config.start.follows_stage_1
    if not (place.resume or place.start_step or follows):
        if config.trains:
            _check_unused(ckpt_dir, steps)
        return
    manifest = _newest_manifest(config, steps)
    if manifest is not None:
        _check_manifest(config, manifest, vocab_size, vocabulary)
        if stage_to_continue(config, manifest) == manifest.get("stage") and not (
            place.resume or place.start_step
        ):
            _check_unused(ckpt_dir, steps)  # --stages 2 with steps of its own
        return
    if follows and launched_rank(os.environ) == 0:  # the others may not see the disk
        raise missing_stage_1(config)
    bare = os.path.join(ckpt_dir, f"{place.start_step:07d}.params")
    if place.start_step and place.start_step not in steps and os.path.isfile(bare):
        _check_parameters(config, bare, vocab_size)


def _newest_manifest(config: RunConfig, steps: Sequence[int]) -> dict[str, Any] | None:
    """The newest readable manifest of those to continue from; None where there is none."""
    chosen = config.checkpoint.start_step
    for step in reversed(steps):
        if chosen and step != chosen:
            continue
        try:
            return read_manifest(config.checkpoint.ckpt_dir, step)
        except InputError:
            continue
    return None


def _continues(config: RunConfig) -> bool:
    """Whether a checkpoint in --ckpt_dir seems to be there for --resume, which wins over --init_from."""
    return config.checkpoint.resume and bool(list_steps(config.checkpoint.ckpt_dir))


def _check_unused(ckpt_dir: str, steps: Sequence[int]) -> None:
    if steps:
        raise InputError(
            f"--ckpt_dir {ckpt_dir} holds checkpoints up to step {steps[-1]}; continue them with --resume "
            "or name another directory"
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
    ckpt_dir, step = config.checkpoint.ckpt_dir, manifest["step"]
    saved = recorded_config(manifest, f"--ckpt_dir {ckpt_dir}: its checkpoint of step {step}")
    facts = [
        ("model", saved.description, config.model.bert.description),
        ("vocabulary size", manifest.get("vocab_size"), vocab_size),
    ]
    if vocabulary and manifest.get("vocab_sha256"):  # unknown for npz files and before a download
        facts.append(("vocabulary sha256", manifest["vocab_sha256"][:12], vocabulary.sha256[:12]))
    for name, made_with, wanted in facts:
        if made_with != wanted:
            raise InputError(
                f"--ckpt_dir {ckpt_dir}: its checkpoint of step {step} has {name} {made_with}, this run "
                f"{wanted}; name the run's own directory, or the model and vocabulary that it was trained "
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
    check_index(source, arrays, expected_shapes(config.model.bert, vocab_size))
    if launched_rank(os.environ) == 0:  # the others get the numbers from it
        check_values(source, path, arrays)
