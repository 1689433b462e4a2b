"""See your data before you spend a week of GPU time.

python -m data.inspect store/ [--num 3]
python -m data.inspect 'pretrain/*.npz' --vocab vocab.txt
python -m data.inspect --raw 'corpus/*.txt' --vocab vocab.txt
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from typing import Any, Sequence

import numpy as np

from base.command_line import OptionParser, count, positive_int
from base.errors import InputError
from data.inspection.decoding import Instance, Style, Words, decode, describe
from data.inspection.histogram import draw_lengths
from data.inspection.opened import Opened, opened
from data.inspection.repeated import repeated_sequences
from data.inspection.report import report
from data.inspection.tallies import (
    BatchSettings,
    batch_facts,
    length_facts,
    mask_facts,
    store_occurrences,
    text_facts,
    token_facts,
)
from data.inspection.warning_rules import warnings
from data.text.corpus import TEXT_FORMATS

_HELP = """\
Shows what a training would see: decoded instances with their masks, how long sentences and sequences are,
what the batches of given settings look like and how much of them is padding, and what looks wrong. The same
numbers go into a picture, NAME.lengths.png in the working directory. Options have the names, meanings and
defaults of the training scripts; with the same ones, instance i of epoch e is the one that the training gets.
"""


def inspect(
    options: argparse.Namespace, found: Opened, style: Style
) -> tuple[dict[str, Any], list[Instance]]:
    """All that is to be shown: numbers as JSON has them, and the decoded instances.

    Memory is that of a training process (an epoch's plan and order, about 25 bytes a sequence; the store is
    mapped), and of the samples that masks are counted in.
    """
    source, vocab, seed, epoch = found.source, found.vocab, options.seed, options.epoch
    settings = BatchSettings(options.batch_size, options.use_avg_len, options.num_buckets)
    masks, occurrences = mask_facts(source, seed, epoch, vocab)
    facts: dict[str, Any] = {"path": ",".join(options.path), "kind": found.kind, **_manifest_facts(found)}
    if found.tokens is not None:
        assert vocab is not None
        facts["text"] = {**text_facts(found.tokens), "repeated": repeated_sequences(found.tokens, vocab)}
        facts["text"]["unknown_marks"] = found.manifest["counts"].get("unknown_marks")
        occurrences = store_occurrences(found.tokens, vocab)
    facts["lengths"] = length_facts(source, seed, epoch)
    facts["batches"] = batch_facts(source, settings, seed, epoch)
    facts["masks"] = masks
    facts["tokens"] = token_facts(occurrences, vocab)
    facts["warnings"] = warnings(facts)
    indices = _chosen(options, facts["lengths"]["number"])
    instances = decode(source, seed, epoch, indices)
    words = Words(vocab, style)
    facts["shown"] = {"seed": seed, "epoch": epoch}
    facts["instances"] = [
        {**describe(each, words, vocab), "file": found.file_of(each.index)} for each in instances
    ]
    return facts, instances


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    try:
        options = _parser().parse_args(arguments)
        return _run(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read has seen enough. What is still buffered must not raise once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    # Names of tokens and files hold anything; what the terminal's encoding lacks is written as an escape.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    with opened(options) as found:
        style = _style(options)
        facts, instances = inspect(options, found, style)
        picture = _picture(options, found)
        if picture is not None:
            try:
                draw_lengths(picture, f"{found.name}: {found.kind}", facts)
            except OSError as error:
                if options.plot is not None:
                    raise InputError(f"--plot: cannot write {picture}: {error.strerror}") from error
                # It was not asked for, and the bars in the terminal say the same.
                print(f"no picture: cannot write {picture}: {error.strerror}", file=sys.stderr)
                picture = None
        if options.json:
            print(json.dumps(facts, indent=1, ensure_ascii=True))
        else:
            print("\n".join(report(facts, instances, found.vocab, style)))
            if picture is not None:
                print(f"picture of the lengths: {picture}")
        sys.stdout.flush()
    return 0


def _manifest_facts(found: Opened) -> dict[str, Any]:
    """What the manifest says, under the same names for every kind of store."""
    manifest, vocab = found.manifest, found.vocab
    counts = dict(manifest["counts"])
    skipped = counts.pop("skipped", 0)
    counts.pop("unknown_marks", None)
    settings = {
        name.replace("_", " "): value
        for name, value in manifest.items()
        if name in ("tokenizer", "text", "settings") and value
    }
    return {
        "counts": counts,
        "vocabulary": None
        if vocab is None
        else {"size": len(vocab), "kind": vocab.kind, "sha256": vocab.sha256},
        "settings": settings,
        "sources": [{"name": each["name"], "size": each["size"]} for each in manifest["sources"]],
        "skipped": skipped,
        "skipped_messages": list(manifest.get("messages", [])),
    }


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


def _picture(options: argparse.Namespace, found: Opened) -> str | None:
    if options.plot is not None:
        return os.path.expanduser(options.plot)
    # Not beside the data: a glob that named it would take the picture for data.
    return None if options.no_plot or options.json else f"{found.name}.lengths.png"


def _style(options: argparse.Namespace) -> Style:
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
        pieces=options.pieces,
    )


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser(
        prog="python -m data.inspect",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "path",
        nargs="+",
        metavar="PATH",
        help="a token store, an instance store, files with masks (npz, HDF5, TFRecord, OFRecord; globs), or "
        "with --raw text",
    )
    group = parser.add_argument_group("what to show")
    add = group.add_argument
    add("--num", type=count, default=3, help="instances to show (default: 3)")
    add("--start", type=count, help="show the instances from this one on (default: random ones)")
    add("--seed", type=count, default=0, help="the training's --seed (default: 0)")
    add("--epoch", type=count, default=0, help="the epoch, from 0 (default: 0)")
    add(
        "--pieces", action="store_true", help="show tokens as they are in the vocabulary, not joined to words"
    )
    add(
        "--plot", metavar="FILE", help="the PNG to write (default: NAME.lengths.png in the working directory)"
    )
    add("--no_plot", action="store_true", help="write no PNG")
    add("--json", action="store_true", help="print everything as JSON instead; a PNG only with --plot")

    group = parser.add_argument_group("how to read it")
    add = group.add_argument
    add(
        "--vocab",
        help="the vocab.txt of files with masks, or to tokenize text with; a token store has its own",
    )
    add("--sentencepiece", help="the same, a SentencePiece model")
    add("--raw", action="store_true", help="the files are text; options as of the training scripts:")
    add("--cased", action="store_true", help="with --raw: keep upper case and accents")
    add("--text_format", choices=TEXT_FORMATS, help="with --raw: what the text files are (default: auto)")
    add("--split_sentences", action="store_true", help="with --raw: lines are running text")
    add(
        "--skip_bad_records",
        action="store_true",
        help="leave out and count what is damaged, instead of ending",
    )
    add(
        "--cache_dir",
        help="keep what is tokenized or converted here, as a training's --cache_dir does (default: a "
        "temporary directory)",
    )
    add(
        "--num_workers",
        type=positive_int,
        default=len(os.sched_getaffinity(0)),
        help="processes that tokenize or convert (default: one a core)",
    )

    group = parser.add_argument_group("pairs and masks, for token stores and text")
    add = group.add_argument
    add("--max_seq_length", type=int, help="tokens a sequence (default: 512); files with masks must fit in")
    add(
        "--max_predictions_per_seq",
        type=int,
        help="masked tokens a sequence (default: 20 at 128, 80 at 512); files with masks must fit in",
    )
    add("--short_seq_prob", type=float, help="share of shortened sequences (default: 0.1)")
    add("--masked_lm_prob", type=float, help="share of masked tokens (default: 0.15)")
    add("--whole_word_mask", action="store_true", help="mask whole words rather than single pieces")
    add("--static_masks", action="store_true", help="pairs and masks of epoch 0 in every epoch")

    group = parser.add_argument_group("batches")
    add = group.add_argument
    add(
        "--batch_size",
        type=positive_int,
        default=8,
        help="sequences, or with --use_avg_len tokens (default: 8)",
    )
    add("--use_avg_len", action="store_true", help="batch_size counts tokens")
    add("--num_buckets", type=positive_int, default=32, help="length buckets (default: 32)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
