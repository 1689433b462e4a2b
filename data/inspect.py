"""See your data before you spend a week of GPU time.

python -m data.inspect store/ [--num 3]
python -m data.inspect 'pretrain/*.npz' --vocab vocab.txt
python -m data.inspect --raw 'corpus/*.txt' --vocab vocab.txt
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from typing import Any, Sequence

import numpy as np

from base.command_line import ScriptParser, code_of, count, num_processes, path_name, show_anything
from base.errors import InputError
from base.options import add_options, taken
from base.progress import Printed
from data.inspection.decoding import Instance, Style, Words, decode, describe
from data.inspection.figures import (
    batch_facts,
    mask_facts,
    repeated_sequences,
    spread,
    store_occurrences,
    text_facts,
    token_facts,
)
from data.inspection.report import draw_lengths, report, warnings
from data.opening import (
    ANY_VOCABULARY,
    INSTANCE_STORE,
    INSTANCES,
    TEXT,
    TOKEN_STORE,
    DataFiles,
    OpenedData,
    check_instances,
    common_vocabulary,
    inspected_data,
    open_data,
)
from data.options import TABLE, DataConfig
from data.pretraining.buckets import length_counts

_HELP = """\
Shows what a training would see: decoded instances with their masks, how long sentences and sequences are,
what the batches of given settings look like and how much of them is padding, and what looks wrong. The same
numbers go into a picture, NAME.lengths.png in the working directory. Options have the names, meanings and
defaults of the training scripts; with the same ones, instance i of epoch e is the one that the training gets.
"""
_OF_PAIRS = ("short_seq_prob", "masked_lm_prob", "whole_word_mask", "static_masks")
_OF_TEXT = ("text_format", "split_sentences", "cased")
_OF_FILES = ("raw", "skip_bad_records", "cache_dir")
_KINDS = {  # of data: its name, options that do nothing there, and why
    TOKEN_STORE: ("token store", (*_OF_TEXT, *_OF_FILES), "is a token store"),
    INSTANCE_STORE: ("instance store", (*_OF_PAIRS, *_OF_TEXT, *_OF_FILES), "has its masks"),
    INSTANCES: ("files with masks", (*_OF_PAIRS, *_OF_TEXT), "has its masks"),
    TEXT: ("text", (), ""),
}


def inspect(
    options: argparse.Namespace, data: DataFiles, opened: OpenedData, style: Style
) -> tuple[dict[str, Any], list[Instance]]:
    """All that is to be shown: numbers as JSON has them, and the decoded instances.

    Memory is that of a training process (an epoch's plan and order, about 25 bytes a sequence; the store is
    mapped), and of the samples that masks are counted in.
    """
    source, vocab, seed, epoch = opened.source, opened.vocabulary, options.seed, options.epoch
    manifest = opened.manifest
    counts = dict(manifest["counts"])
    skipped, unknown_marks = counts.pop("skipped", 0), counts.pop("unknown_marks", None)
    masks, occurrences = mask_facts(source, seed, epoch, vocab)
    facts: dict[str, Any] = {
        "path": ",".join(options.path),
        "kind": _KINDS[data.kind][0],
        "counts": counts,
        "vocabulary": None
        if vocab is None
        else {"size": len(vocab), "kind": vocab.kind, "sha256": vocab.sha256},
        "settings": {
            name.replace("_", " "): value
            for name, value in manifest.items()
            if name in ("tokenizer", "text", "settings") and value
        },
        "sources": [{"name": each["name"], "size": each["size"]} for each in manifest["sources"]],
        "skipped": skipped,
        "skipped_messages": list(manifest.get("messages", [])),
    }
    if opened.tokens is not None:
        assert vocab is not None
        facts["text"] = {
            **text_facts(opened.tokens),
            "repeated": repeated_sequences(opened.tokens, vocab),
            "unknown_marks": unknown_marks,
        }
        occurrences = store_occurrences(opened.tokens, vocab)
    facts["lengths"] = spread(length_counts(source.lengths(seed, epoch)))  # with [CLS] and [SEP]
    facts["batches"] = batch_facts(source, taken(DataConfig, options).batching, seed, epoch)
    facts["masks"] = masks
    facts["tokens"] = token_facts(occurrences, vocab)
    facts["warnings"] = warnings(facts)
    instances = decode(source, seed, epoch, _chosen(options, facts["lengths"]["number"]))
    words = Words(vocab, style)
    facts["shown"] = {"seed": seed, "epoch": epoch}
    facts["instances"] = [
        {
            **describe(each, words, vocab),
            # Instances made from text are of no file.
            "file": None if opened.instances is None else opened.instances.source_of(each.index),
        }
        for each in instances
    ]
    return facts, instances


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    try:
        options = _parser().parse_args(arguments)
        with tempfile.TemporaryDirectory(prefix="inspect-") as scratch:
            return _run(options, scratch)
    except BrokenPipeError:
        raise  # for `code_of`
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace, scratch: str) -> int:
    """Looks at the data and prints. What is tokenized or converted goes to --cache_dir, where a training
    finds it, or to `scratch`."""
    show_anything()
    plot = None if options.plot is None else os.path.expanduser(options.plot)
    if plot is not None and not os.path.isdir(os.path.dirname(plot) or "."):
        raise InputError(f"--plot: cannot write {plot}: {os.strerror(errno.ENOENT)}")
    data = inspected_data(options.path, options.raw)
    _, names, reason = _KINDS[data.kind]
    for name in names:  # whoever gives an option believes that it counts
        if getattr(options, name) not in (None, False):
            raise InputError(f"--{name} does nothing here: {options.path[0]} {reason}")
    config = taken(DataConfig, options)
    config = replace(config, cache_dir=config.cache_dir or scratch)
    vocabulary = common_vocabulary(config.tokenizer, data)
    if data.kind == INSTANCES:  # before the first of them is converted
        check_instances(data.paths, config.masking.max_seq_length, config.masking.max_predictions_per_seq)
    size = len(vocabulary) if vocabulary is not None else ANY_VOCABULARY
    opened = open_data(data, config, vocabulary, size, options.num_workers, Printed())
    style = _style(options.pieces)
    facts, instances = inspect(options, data, opened, style)

    name = os.path.basename(os.path.abspath(data.paths[0]))
    # By default not beside the data: a glob that named it would take the picture for data.
    picture = plot or (None if options.no_plot or options.json else f"{name}.lengths.png")
    if picture is not None:
        try:
            draw_lengths(picture, f"{name}: {facts['kind']}", facts)
        except OSError as error:
            if plot is not None:
                raise InputError(f"--plot: cannot write {picture}: {error.strerror}") from error
            # It is the default, and the bars in the terminal say the same.
            print(f"no picture: cannot write {picture}: {error.strerror}", file=sys.stderr)
            picture = None
    if options.json:
        print(json.dumps(facts, indent=1, ensure_ascii=True))
    else:
        print("\n".join(report(facts, instances, opened.vocabulary, style)))
        if picture is not None:
            print(f"picture of the lengths: {picture}")
    sys.stdout.flush()
    return 0


def _chosen(options: argparse.Namespace, total: int) -> list[int]:
    """The instances to show: `num` from --start on, or as many at random, the same ones for a seed."""
    if options.start is not None:
        if options.start >= total:
            raise InputError(
                f"--start {options.start}: the epoch has {total} instances, from 0 to {total - 1}"
            )
        return list(range(options.start, min(options.start + options.num, total)))
    rng = np.random.default_rng([options.seed, options.epoch])
    return sorted(rng.choice(total, min(options.num, total), replace=False).tolist())


def _style(pieces: bool) -> Style:
    encoding = sys.stdout.encoding or "ascii"
    try:
        "\u2192\u2588\u258f".encode(encoding)
        unicode = True
    except (UnicodeEncodeError, LookupError):
        unicode = False
    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size((100, 24)).columns
    return Style(
        width=min(max(width, 60), 140),
        colour=terminal and not os.environ.get("NO_COLOR"),
        unicode=unicode,
        pieces=pieces,
    )


def _parser() -> argparse.ArgumentParser:
    parser = ScriptParser(
        prog="python -m data.inspect",
        description=_HELP,
    )
    parser.add_argument(
        "path",
        nargs="+",
        type=path_name,
        metavar="PATH",
        help="a token store, an instance store, files with masks (npz, HDF5, TFRecord, OFRecord; globs), or "
        "with --raw text",
    )
    add = parser.add_argument_group("what to show").add_argument
    add("--num", type=count, default=3, help="instances to show (default: 3)")
    add("--start", type=count, help="show the instances from this one on (default: random ones)")
    add("--seed", type=count, default=0, help="the training's --seed (default: 0)")
    add("--epoch", type=count, default=0, help="the epoch, from 0 (default: 0)")
    add(
        "--pieces", action="store_true", help="show tokens as they are in the vocabulary, not joined to words"
    )
    add(
        "--plot",
        type=path_name,
        metavar="FILE",
        help="the PNG to write (default: NAME.lengths.png in the working directory)",
    )
    add("--no_plot", action="store_true", help="write no PNG")
    add("--json", action="store_true", help="print everything as JSON instead; a PNG only with --plot")

    unset: dict[str, Any] = {"default": None}  # to know which ones are given
    changes: dict[str, dict[str, Any]] = {
        **dict.fromkeys(("text_format", "short_seq_prob", "masked_lm_prob"), unset),
        "vocab": {
            "help": "the vocab.txt of files with masks, or to tokenize text with; a token store has its own"
        },
        "sentencepiece": {"help": "the same, a SentencePiece model"},
        "cache_dir": {
            "help": "keep what is tokenized or converted here, as a training's --cache_dir does (default: a "
            "temporary directory)"
        },
        "batch_size": {"help": "sequences, or with --use_avg_len tokens (default: 8)"},
        "use_avg_len": {"help": "batch_size counts tokens"},
    }

    def add_group(title: str, names: str) -> Any:
        group = parser.add_argument_group(title)
        add_options(group.add_argument, TABLE, names, changes)
        return group

    group = add_group(
        "how to read it",
        "vocab sentencepiece raw cased text_format split_sentences skip_bad_records cache_dir",
    )
    group.add_argument(
        "--num_workers",
        type=num_processes,
        default=len(os.sched_getaffinity(0)),
        help="processes that tokenize or convert (default: one a core)",
    )
    masks = (
        "max_seq_length max_predictions_per_seq short_seq_prob masked_lm_prob whole_word_mask static_masks"
    )
    add_group("pairs and masks, for token stores and text", masks)
    add_group("batches", "batch_size use_avg_len num_buckets")
    return parser


if __name__ == "__main__":
    sys.exit(code_of(main))
