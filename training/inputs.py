"""Everything about a run's files that can be checked before mxnet is imported and before any work starts."""

from __future__ import annotations

import argparse
import glob
import os
import re
from dataclasses import dataclass
from typing import Any, NamedTuple, Sequence

from base.errors import InputError
from base.launchers import launched_rank
from bert.weights.bare_params import DECODER, EMBEDDING, check_index, check_values, expected_shapes
from bert.weights.params_file import read_index
from data.formats.find import expand_instances
from data.formats.identify import identify
from data.formats.read import check_limits, peek
from data.store.tokens import TokenStore, is_store
from data.tokenizing.tokenizer import load_sentencepiece
from data.tokenizing.vocab import Vocabulary, load_vocab
from training.checkpoint import list_steps, read_manifest
from training.data_options import MAX_POSITIONS
from training.options import PUBLISHED_VOCABULARIES, parse_model

_LAYER = re.compile(r"encoder\.transformer_cells\.(\d+)\.")


class DataFiles(NamedTuple):
    """What --data or --data_eval names."""

    kind: str  # "text", "store" (a token store), "instances" (sequences with their masks), or "" for nothing
    paths: Sequence[str] = ()


@dataclass(frozen=True)
class Inputs:
    """What the run reads, known to exist and to be of the right form. `train` is nothing when random tokens
    (--dummy_data_len) take its place."""

    train: DataFiles
    evaluation: DataFiles
    vocabulary: Vocabulary | None  # None: the one of --dataset_name, to be downloaded, or none needed
    vocab_size: int
    max_seq_length: int

    @property
    def reads_text(self) -> bool:
        """Whether something has to be tokenized, for which there must be a vocabulary."""
        return "text" in (self.train.kind, self.evaluation.kind)


def check_inputs(options: argparse.Namespace) -> Inputs:
    """Opens what the options name. All of the data is checked later, while it is tokenized or converted.

    Raises:
        InputError: a file that is missing, empty or of the wrong form; a checkpoint of another model; a new
            run in a directory that already holds one.
    """
    train = _find_data("--data", options.data, options.raw)
    evaluation = _find_data("--data_eval", options.data_eval, options.raw and not options.eval_use_npz)
    vocabulary = _vocabulary(options, train, evaluation)
    vocab_size = len(vocabulary) if vocabulary else PUBLISHED_VOCABULARIES[options.dataset_name]
    if options.dummy_data_len:  # of --data only the names count
        train = DataFiles("")
    widths = []
    # Beside text, or random tokens, the options for masks are theirs.
    only_masked = {train.kind, evaluation.kind} - {""} == {"instances"} and not options.dummy_data_len
    for data in (train, evaluation):
        if data.kind == "instances":
            predictions = options.max_predictions_per_seq if only_masked or data is train else None
            for path in data.paths:
                facts = peek(path)
                check_limits(path, facts.width, facts.num_predictions, options.max_seq_length, predictions)
                widths.append(facts.width)
        elif data.kind == "text":
            _check_text(data.paths)
    # What is not padded may just miss the length that it was made for: 126 tokens mean 128.
    longest = max(widths, default=MAX_POSITIONS)
    max_seq_length = options.dummy_data_len or options.max_seq_length or -(-longest // 8) * 8
    for flag, default in (("whole_word_mask", False), ("masked_lm_prob", 0.15), ("short_seq_prob", 0.1)):
        if only_masked and getattr(options, flag) != default:
            raise InputError(f"--{flag}: files with masks hold theirs already; it needs text or a store")
    _check_checkpoints(options, vocab_size, vocabulary)
    return Inputs(train, evaluation, vocabulary, vocab_size, max_seq_length)


def _find_data(flag: str, patterns: str | None, text: bool) -> DataFiles:
    if not patterns:
        return DataFiles("")
    folder = os.path.expanduser(patterns.strip())
    if is_store(folder):
        return DataFiles("store", (folder,))
    return DataFiles("text" if text else "instances", expand_instances(patterns, flag))


def _vocabulary(options: argparse.Namespace, *data: DataFiles) -> Vocabulary | None:
    """The vocabulary that the options name; without, that of a token store. They must not differ."""
    chosen: Vocabulary | None = None
    source = "--vocab" if options.vocab else "--sentencepiece"
    if options.vocab:
        chosen = load_vocab(os.path.expanduser(options.vocab))
    elif options.sentencepiece:
        chosen = load_sentencepiece(os.path.expanduser(options.sentencepiece))
    for each in data:
        if each.kind == "store":
            stored = TokenStore.open(each.paths[0], verify=False).vocabulary
            if chosen is not None and chosen.sha256 != stored.sha256:
                raise InputError(
                    f"{each.paths[0]} was tokenized with another vocabulary than that of {source}; leave out "
                    f"{source}, or prepare the text again"
                )
            chosen, source = chosen or stored, source if chosen else each.paths[0]
    if options.sp_nbest not in (0, 1) and any(each.kind == "store" for each in data):
        raise InputError("--sp_nbest: a token store is tokenized already; give the text, with --raw")
    return chosen


def _check_text(files: Sequence[str]) -> None:
    """A look at the beginning of each file. Lines are checked when they are tokenized, at once or, if the
    run finds its text tokenized already, never again."""
    for path in files:
        try:
            kind = identify(path)
        except InputError:
            continue
        raise InputError(
            f"{path} is not text but {kind.format}, which is read without --raw "
            "(as --data_eval beside text: with --eval_use_npz)"
        )


def _check_checkpoints(options: argparse.Namespace, vocab_size: int, vocabulary: Vocabulary | None) -> None:
    """What the run goes on from must be of this model; a new run must not write over an old one.

    Damaged checkpoints are found, and passed over, later.
    """
    ckpt_dir = options.ckpt_dir
    if os.path.exists(ckpt_dir) and not os.path.isdir(ckpt_dir):
        raise InputError(f"--ckpt_dir {ckpt_dir} is a file; name a directory")
    steps = list_steps(ckpt_dir)
    if not (options.resume or options.start_step):
        if options.data or options.dummy_data_len:
            _check_unused(ckpt_dir, steps)
        return
    for step in reversed(steps):
        if options.start_step and step != options.start_step:
            continue
        try:
            manifest = read_manifest(ckpt_dir, step)
        except InputError:
            continue
        _check_manifest(options, manifest, vocab_size, vocabulary)
        return
    bare = os.path.join(ckpt_dir, f"{options.start_step:07d}.params")
    if options.start_step and options.start_step not in steps and os.path.isfile(bare):
        _check_parameters(options, bare, vocab_size)


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
    options: argparse.Namespace, manifest: dict[str, Any], vocab_size: int, vocabulary: Vocabulary | None
) -> None:
    facts = [
        ("model", manifest.get("model"), options.model),
        ("vocabulary size", manifest.get("vocab_size"), vocab_size),
    ]
    if vocabulary and manifest.get("vocab_sha256"):  # unknown for npz files and before a download
        facts.append(("vocabulary sha256", manifest["vocab_sha256"][:12], vocabulary.sha256[:12]))
    for name, made_with, wanted in facts:
        if made_with != wanted:
            raise InputError(
                f"--ckpt_dir {options.ckpt_dir}: its checkpoint of step {manifest['step']} has {name} "
                f"{made_with}, this run {wanted}; name the run's own directory, or the model and "
                "vocabulary that it was trained with"
            )


def _check_parameters(options: argparse.Namespace, path: str, vocab_size: int) -> None:
    """A .params file without a manifest: its model, then every parameter."""
    arrays = read_index(path)
    found_layers = len({match[1] for match in map(_LAYER.match, arrays) if match})
    embedding = arrays.get(EMBEDDING, arrays.get(DECODER))
    if embedding is None or len(embedding.shape) != 2 or not found_layers:
        raise InputError(
            f"--start_step {options.start_step}: {path} is no BERT with GluonNLP's parameter names"
        )
    layers, units, _ = parse_model(options.model)
    found = (found_layers, *embedding.shape[::-1])
    if found != (layers, units, vocab_size):
        raise InputError(
            f"--start_step {options.start_step}: {path} has {found[0]} layers, {found[1]} units and "
            f"{found[2]} tokens, this run {layers}, {units} and {vocab_size}; name its model and vocabulary"
        )
    source = f"--start_step {options.start_step}: {path}"
    check_index(source, arrays, expected_shapes(layers, units, vocab_size))
    if launched_rank(os.environ) == 0:  # the others get the numbers from it
        check_values(source, path, arrays)
