"""Everything about a run's files that can be checked before mxnet is imported and before any work starts."""

from __future__ import annotations

import argparse
import codecs
import glob
import os
import re
from dataclasses import dataclass
from typing import Any, Sequence

from bert.checkpoint import list_steps, read_manifest
from bert.data_options import MAX_POSITIONS
from bert.options import PUBLISHED_VOCABULARIES, parse_model
from bert.params_file import read_index
from data.errors import InputError
from data.sources import NpzSource
from data.text import expand_globs, sentences
from data.tokenizer import load_sentencepiece
from data.vocab import Vocabulary, load_vocab

BLOCK = 1 << 22
_LAYER = re.compile(r"encoder\.transformer_cells\.(\d+)\.")


@dataclass(frozen=True)
class Inputs:
    """What the run reads, known to exist and to be of the right form."""

    train_files: Sequence[str]
    eval_files: Sequence[str]
    vocabulary: Vocabulary | None  # None: the one of --dataset_name, to be downloaded, or none needed
    vocab_size: int
    max_seq_length: int


def check_inputs(options: argparse.Namespace) -> Inputs:
    """Opens what the options name.

    Raises:
        InputError: a file that is missing, empty or of the wrong form; a checkpoint of another model; a new
            run in a directory that already holds one.
    """
    vocabulary = _vocabulary(options)
    vocab_size = len(vocabulary) if vocabulary else PUBLISHED_VOCABULARIES[options.dataset_name]
    train_files = expand_globs(options.data, "--data") if options.data else ()
    eval_files = expand_globs(options.data_eval, "--data_eval") if options.data_eval else ()
    npz_lengths = []
    for flag, files, is_text in (
        # Of --data only the names count when --dummy_data_len takes its place.
        ("--data", () if options.dummy_data_len else train_files, options.raw),
        ("--data_eval", eval_files, options.raw and not options.eval_use_npz),
    ):
        if files and is_text:
            _check_text(flag, files)
        elif files:
            npz_lengths.append(NpzSource(files, vocab_size).max_length)
    if options.max_seq_length and max(npz_lengths, default=0) > options.max_seq_length:
        raise InputError(
            f"--max_seq_length {options.max_seq_length}: "
            f"the npz files hold up to {max(npz_lengths)} tokens a sequence"
        )
    # The longest sequence of a sample may just miss what its file was made for: 126 tokens mean 128.
    longest = max(npz_lengths, default=MAX_POSITIONS)
    max_seq_length = options.dummy_data_len or options.max_seq_length or -(-longest // 8) * 8
    _check_checkpoints(options, vocab_size, vocabulary)
    return Inputs(train_files, eval_files, vocabulary, vocab_size, max_seq_length)


def _vocabulary(options: argparse.Namespace) -> Vocabulary | None:
    if options.vocab:
        return load_vocab(os.path.expanduser(options.vocab))
    if options.sentencepiece:
        return load_sentencepiece(os.path.expanduser(options.sentencepiece))
    return None


def _check_text(flag: str, files: Sequence[str]) -> None:
    """All of it must be UTF-8. Tokenizing would find that out too, perhaps after hours; decoding a GB takes 1
    to 6 seconds, a hundredth of its tokenization."""
    for path in files:
        if path.endswith(".npz"):
            raise InputError(
                f"{flag}: npz files with --raw; leave out --raw, or for --data_eval add --eval_use_npz"
            )
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            with open(path, "rb") as file:
                while True:
                    block = file.read(BLOCK)
                    decoder.decode(block, final=not block)
                    if not block:
                        break
        except OSError as error:
            raise InputError(f"{flag}: cannot read {path}: {error.strerror}") from error
        except UnicodeDecodeError:
            for _ in sentences([path]):  # raises, naming the line
                pass


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
    """A .params file without a manifest, as far as its layers, units and tokens go."""
    arrays = read_index(path)
    found_layers = len({match[1] for match in map(_LAYER.match, arrays) if match})
    embedding = arrays.get("word_embed.0.weight")
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
