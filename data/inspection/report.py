"""The report of data.inspect for a terminal, and a picture, from the facts that --json prints as they are."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Sequence

import numpy as np

from base.drawing import literal, new_figure
from base.files import replacing
from data.inspection.decoding import MASKED, Instance, Style, Words, columns, fate, printable
from data.tokenizing.vocab import Vocabulary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DUPLICATE_SHARE = 0.1  # of sentences, from which on they are reported; the text that comes with Python has 5%


def report(
    facts: dict[str, Any], instances: Sequence[Instance], vocab: Vocabulary | None, style: Style
) -> list[str]:
    """The whole report as lines."""
    lines = [*_what(facts, style), ""]
    if instances:
        lines += [*_instances(facts, instances, vocab, style), ""]
    lines += [*_lengths(facts, style), "", *_batches(facts), "", *_masks(facts)]
    lines += ["", *_tokens(facts, style), ""]
    if facts["warnings"]:
        lines += [_coloured(f"warning: {warning}", "1;33", style) for warning in facts["warnings"]]
    else:
        lines.append("nothing looks wrong")
    return lines


def _what(facts: dict[str, Any], style: Style) -> list[str]:
    counts = facts["counts"]
    lines = [_heading(f"{printable(facts['path'])}: {facts['kind']}", style)]
    lines.append("  " + ", ".join(f"{value:,} {name}" for name, value in counts.items()))
    if "text" in facts:
        sentences, documents = facts["text"]["sentence_lengths"], facts["text"]["document_lengths"]
        lines.append(
            f"  a sentence has {sentences['mean']:.1f} tokens in the mean (median {sentences['median']}), "
            f"a document {documents['mean']:.1f} sentences; {_duplicate_share(facts):.1%} of the sentences "
            "stand in the text before"
        )
    vocabulary = facts["vocabulary"]
    if vocabulary is None:
        lines.append("  vocabulary: not given, so token ids are shown as they are (--vocab names one)")
    else:
        lines.append(
            f"  vocabulary: {vocabulary['size']:,} tokens, {vocabulary['kind']}, "
            f"sha256 {vocabulary['sha256'][:12]}"
        )
    for name, value in facts["settings"].items():
        if isinstance(value, dict):
            value = ", ".join(f"{option.replace('_', ' ')} {setting}" for option, setting in value.items())
        # Of checksums the beginning is enough to tell them apart.
        value = re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", str(value))
        lines.append(f"  {name}: {printable(value)}")
    sources = facts["sources"]
    shown = ", ".join(f"{printable(str(each['name']))} ({_size(each['size'])})" for each in sources[:3])
    lines.append(f"  made from {shown}" + (f" and {len(sources) - 3} more" if len(sources) > 3 else ""))
    if facts["skipped"]:
        plural = "s were" if facts["skipped"] > 1 else " was"
        lines.append(f"  {facts['skipped']:,} bad record{plural} left out:")
        lines += [f"    {printable(message)}" for message in facts["skipped_messages"]]
    stored = facts["kind"].endswith("store")
    lines.append(
        "  its checksums have been verified" if stored else "  every record has been read and checked"
    )
    return lines


def _instances(
    facts: dict[str, Any], instances: Sequence[Instance], vocab: Vocabulary | None, style: Style
) -> list[str]:
    lines = []
    words = Words(vocab, style)
    of = facts["shown"]
    for instance, described in zip(instances, facts["instances"]):
        fates = [fate(token, vocab) for token in instance.tokens if token.predicted]
        masked = fates.count(MASKED)
        predicted = f"{len(fates)} to predict"
        if vocab is not None:
            predicted += f" ({masked} masked)"
        follows = "B is from another document" if instance.is_random else "B follows A"
        if facts["kind"] not in ("token store", "text"):
            follows = "B is a random sentence" if instance.is_random else "B follows A"
        where = f" of {printable(described['file'])}" if described.get("file") else ""
        lines.append(
            _heading(
                f"instance {instance.index}{where} (seed {of['seed']}, epoch {of['epoch']}): "
                f"{described['length']} tokens, {predicted}; {follows}",
                style,
            )
        )
        for name, part in (("A", instance.segment_a), ("B", instance.segment_b)):
            if part:
                lines += words.lines(part, f"  {name} ")
    arrow = style.arrow
    kinds = f"[MASK{arrow}word] hidden, [other{arrow}word] replaced by a random token" if vocab else ""
    kinds = kinds or f"[other{arrow}id] hidden or replaced"
    lines.append(f"  {kinds}, [=word] left as it is but to be predicted")
    return lines


def _lengths(facts: dict[str, Any], style: Style) -> list[str]:
    lengths = facts["lengths"]
    lines = [
        _heading(
            f"length of {lengths['number']:,} sequences in tokens: {lengths['smallest']} to "
            f"{lengths['largest']}, mean {lengths['mean']:.1f}, median {lengths['median']}",
            style,
        )
    ]
    lines += bars(bins(lengths["counts"], multiple=8), style.width, style.unicode)
    if "text" in facts:
        sentences = facts["text"]["sentence_lengths"]
        lines += ["", _heading(f"length of {sentences['number']:,} sentences in tokens", style)]
        lines += bars(bins(sentences["counts"], most=12, tail=0.005), style.width, style.unicode)
    return lines


def _batches(facts: dict[str, Any]) -> list[str]:
    batches = facts["batches"]
    unit = "tokens" if batches["use_avg_len"] else "sequences"
    lines = [
        f"batches of {batches['batch_size']:,} {unit}, {batches['num_buckets']} buckets at most: "
        f"{batches['padding_share']:.2%} of the positions are padding",
        f"  {'tokens':>9} {'sequences a batch':>18} {'batches':>9} {'sequences':>11}",
    ]
    for bucket in batches["buckets"]:
        span = f"{bucket['shortest']}-{bucket['padded_to']}"
        lines.append(
            f"  {span:>9} {bucket['sequences_per_batch']:>18,} {bucket['batches']:>9,} "
            f"{bucket['sequences']:>11,}"
        )
    lines.append(
        f"  {batches['batches_per_epoch']:,} batches an epoch over all ranks, {batches['tokens']:,} tokens "
        f"in {batches['positions']:,} positions, {batches['tokens_per_batch']:,.0f} tokens a batch"
    )
    return lines


def _masks(facts: dict[str, Any]) -> list[str]:
    masks = facts["masks"]
    sampled = "" if masks["sequences"] == masks["of"] else f" (counted in {masks['sequences']:,} sequences)"
    per_sequence = masks["predictions_per_sequence"]
    lines = [
        f"{masks['predicted_share']:.1%} of the tokens are to be predicted{sampled}, "
        f"{per_sequence['mean']:.1f} a sequence, {per_sequence['largest']} at most"
    ]
    if facts["vocabulary"] is not None:
        lines.append(
            f"  of those {masks['masked_share']:.1%} are [MASK], {masks['replaced_share']:.1%} a random "
            f"token, {masks['kept_share']:.1%} left as they are"
        )
    else:
        lines.append(f"  of those {masks['kept_share']:.1%} are left as they are")
    lines.append(f"  B is a random sentence in {masks['random_next_share']:.1%} of the sequences")
    return lines


def _tokens(facts: dict[str, Any], style: Style) -> list[str]:
    tokens = facts["tokens"]
    line = f"of {tokens['tokens']:,} tokens counted"
    if "unknown_share" in tokens:
        line += (
            f", {tokens['unknown_share']:.2%} are [UNK]; {tokens['different']:,} different ones occur, "
            f"{tokens['vocabulary_used_share']:.0%} of the vocabulary"
        )
    else:
        line += f", {tokens['different']:,} are different"
    lines, row = [line], "  most frequent:"
    for name, share in tokens["most_frequent"]:
        item = f" {printable(str(name))} {share:.1%}"
        if columns(row + item) > style.width:
            lines.append(row)
            row = "   "
        row += item + " "
    return [*lines, row.rstrip()]


def _heading(text: str, style: Style) -> str:
    return _coloured(text, "1", style)


def _coloured(text: str, colour: str, style: Style) -> str:
    return f"\033[{colour}m{text}\033[0m" if style.colour else text


def _size(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def warnings(facts: dict[str, Any]) -> list[str]:
    """Warnings about the figures of `data.inspection.figures`, one line each."""
    lines: list[str] = []
    masks, tokens, batches = facts["masks"], facts["tokens"], facts["batches"]
    if tokens.get("unknown_share", 0.0) > 0.01:
        lines += _unknown_warnings(facts)
    if batches["padding_share"] > 0.05:
        lines.append(
            f"{batches['padding_share']:.1%} of the positions are padding: more --num_buckets make it less"
            + (", and so do fewer sequences in a batch" if batches["batches_per_epoch"] < 100 else "")
        )
    if abs(masks["random_next_share"] - 0.5) > 0.1 and masks["sequences"] >= 100:
        lines.append(
            f"B is a random sentence in {masks['random_next_share']:.0%} of the sequences, not in half"
        )
    if not masks["predictions"]:
        lines.append("nothing is masked: no sequence has a token to predict")
    if masks["predictions"] and masks["masked_share"] == 0 and "unknown_share" in tokens:
        lines.append("no predicted token is [MASK]: is this the vocabulary that the files were made with?")
    if batches["fullest_batch_positions"] > batches["batch_size"] and batches["use_avg_len"]:
        lines.append(
            f"a batch of --batch_size {batches['batch_size']} tokens cannot hold one sequence of "
            f"{facts['lengths']['largest']}; its batches are larger"
        )
    return lines + _text_warnings(facts)


def _unknown_warnings(facts: dict[str, Any]) -> list[str]:
    """Reasons for [UNK]: words that the text itself marks as unknown, or a vocabulary that lacks words."""
    unknown = facts["tokens"]["unknown_share"]
    marks = facts.get("text", {}).get("unknown_marks")
    cure = "train one with data.train_vocab, or see whether the text is garbled"
    if marks is None:  # of files with masks, or a store without this count
        return [
            f"{unknown:.1%} of the tokens are [UNK]: the vocabulary does not fit the text ({cure}), or the "
            "text itself has <unk> in place of words"
        ]
    marked = min(marks / facts["counts"]["tokens"], unknown)
    lacking = unknown - marked
    lines = []
    if marked > 0.01 or marked >= lacking:
        lines.append(
            f"{marked:.1%} of the tokens are [UNK] because the text itself has <unk> in place of words, "
            f"{marks:,} times, as WikiText does; that is no fault of the vocabulary"
        )
    if lacking > 0.01 or marked < lacking:
        lines.append(f"{lacking:.1%} of the tokens are [UNK]: the vocabulary does not fit the text; {cure}")
    return lines


def _text_warnings(facts: dict[str, Any]) -> list[str]:
    if "text" not in facts:
        return []
    lines = []
    sentences, documents = facts["text"]["sentence_lengths"], facts["text"]["document_lengths"]
    single = _counted(documents, [1]) / documents["number"]
    if single > 0.2:
        lines.append(
            f"{single:.0%} of the documents are a single sentence, so their B is always random: is there "
            "a blank line after every line? --split_sentences if a line is a paragraph"
        )
    short = _counted(sentences, range(1, 5)) / sentences["number"]
    if short > 0.25:
        lines.append(f"{short:.0%} of the sentences have fewer than 5 tokens: are they headings or a table?")
    if _duplicate_share(facts) > DUPLICATE_SHARE:
        lines.append(
            f"{_duplicate_share(facts):.0%} of the sentences stand in the text before, token by token: are "
            "documents in it twice, or boilerplate? data.build_corpus --text keeps each sentence once"
        )
    for each in facts["text"]["repeated"]:
        text = f"{each['share']:.1%} of the tokens are {each['text']!r}"
        if each["joined"].lower() == "<unk>":
            lines.append(
                f"{text}: the text has a literal <unk> in place of words; --text_format wikitext makes [UNK] "
                "of it, or take it out of the text"
            )
        elif each["marker"]:
            lines.append(
                f"{text}: mark-up that was left in the text? Take it out before the text is prepared"
            )
        else:
            lines.append(f"{text}: no language repeats itself so much; is it a header or a template?")
    if sentences["mean"] > 100:
        lines.append(
            f"a sentence has {sentences['mean']:.0f} tokens in the mean: lines seem to be paragraphs; "
            "prepare the text with --split_sentences"
        )
    return lines


def _duplicate_share(facts: dict[str, Any]) -> float:
    return float(facts["text"]["duplicate_sentences"] / facts["text"]["sentence_lengths"]["number"])


def _counted(facts: dict[str, Any], values: Sequence[int] | range) -> int:
    return sum(count for value, count in facts["counts"] if value in values)


_EIGHTHS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589"
_FULL = "\u2588"
_BLUE, _GREY, _RED = "#3b6ea5", "#555555", "#c44e52"


class Bin(NamedTuple):
    """The number of values in first..last, both included; `last` None stands for all above."""

    first: int
    last: int | None
    number: int

    @property
    def name(self) -> str:
        """The range in words."""
        if self.last is None:
            return f"{self.first}+"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def bins(counts: Sequence[Sequence[int]], multiple: int = 1, most: int = 16, tail: float = 0.0) -> list[Bin]:
    """About `most` bins of one width, a multiple of `multiple`, that hold all (value, number) pairs.

    `counts` is sorted by value, whole numbers from 1. Bins end at multiples of their width. Empty ones before
    the first value are left out. With `tail`, a share, so many of the largest values may share one last bin:
    single ones would stretch the axis.
    """
    values, result = np.array(counts, dtype=np.int64), []
    below = np.cumsum(values[:, 1])
    end = int(values[np.searchsorted(below, (1 - tail) * below[-1]), 0])
    low = int(values[0, 0]) - 1
    width = next(step for step in _steps(multiple) if (end - 1) // step - low // step < most)
    first, last = low // width, (end - 1) // width
    place = np.minimum((values[:, 0] - 1) // width - first, last - first + 1)
    totals = np.bincount(place, values[:, 1], minlength=last - first + 1).astype(np.int64).tolist()
    for number, total in enumerate(totals):
        start = (first + number) * width
        result.append(Bin(start + 1, start + width if number <= last - first else None, total))
    return result


def _steps(multiple: int) -> Iterator[int]:
    """Rising widths: 1, 2, 5, 10, 20, 50, ... or the multiple doubled again and again."""
    if multiple > 1:
        yield from (multiple << exponent for exponent in itertools.count())
    yield from (step * 10**exponent for exponent in itertools.count() for step in (1, 2, 5))


def bars(shown: Sequence[Bin], width: int, unicode: bool = True) -> list[str]:
    """A line for each bin, of at most `width` columns: its range, a bar, its count and its share."""
    total, most = sum(each.number for each in shown), max(each.number for each in shown)
    names = [each.name for each in shown]
    counts = [f"{each.number:,}" for each in shown]
    name_width, count_width = max(map(len, names)), max(map(len, counts))
    room = max(10, width - name_width - count_width - 12)
    return [
        f"  {name:>{name_width}} {bar(each.number / most, room, unicode):<{room}} "
        f"{count:>{count_width}} {each.number / total:6.1%}"
        for name, count, each in zip(names, counts, shown)
    ]


def bar(share: float, room: int, unicode: bool) -> str:
    """A bar of `share` (0 to 1) of `room` columns; anything above 0 is seen."""
    eighths = round(share * room * 8)
    if share > 0:
        eighths = max(eighths, 1)
    if not unicode:
        return "#" * max(eighths // 8, int(share > 0))
    return (_FULL * (eighths // 8) + _EIGHTHS[eighths % 8]).strip()


def draw_lengths(path: str, title: str, facts: dict[str, Any]) -> None:
    """Write a PNG of what `data.inspect` counted: lengths of sequences with the bounds of their buckets, and
    lengths of sentences (for text) or predictions a sequence (for ready instances).

    The file is written whole or not at all. Raises OSError when it cannot be.
    """
    figure = new_figure((12, 4.8))
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [3, 2]})
    figure.suptitle(literal(title))

    batches, lengths = facts["batches"], facts["lengths"]
    bounds = [bucket["padded_to"] for bucket in batches["buckets"]]
    # Nearly all sequences are of full length; on a linear axis the others would not be seen.
    log = max(count for _, count in lengths["counts"]) > 0.2 * lengths["number"]
    left.set(
        title=f"{lengths['number']:,} sequences; {batches['padding_share']:.1%} of positions are padding "
        f"({len(bounds)} bucket{'s' * (len(bounds) != 1)})",
        xlabel="tokens, with [CLS] and [SEP]",
        ylabel="sequences" + " (log scale)" * log,
        yscale="log" if log else "linear",
    )
    if log:
        left.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else "")
    _draw_counts(left, lengths["counts"], bounds[-1], 64)
    ends = [bound + 0.5 for bound in bounds]
    style = {"color": _RED, "linestyle": "--", "linewidth": 1}
    left.vlines(ends, 0, 1, transform=left.get_xaxis_transform(), label="a bucket ends here", **style)
    left.legend(loc="upper left", framealpha=0.9)

    if "text" in facts:
        shown = facts["text"]["sentence_lengths"]
        # The longest one in a hundred would squeeze all others into a corner.
        below = np.cumsum([count for _, count in shown["counts"]])
        end = shown["counts"][int(np.searchsorted(below, 0.99 * below[-1]))][0]
        words = (f"{shown['number']:,} sentences (shortest 99%)", "tokens", "sentences")
    else:
        shown = facts["masks"]["predictions_per_sequence"]
        end = shown["largest"]
        words = (f"predictions of {shown['number']:,} sequences", "masked tokens", "sequences")
    right.set(title=words[0], xlabel=words[1], ylabel=words[2])
    _draw_counts(right, shown["counts"], end, 80)
    right.axvline(shown["mean"], color=_GREY, linestyle=":", label=f"mean {shown['mean']:.1f}")
    right.legend()
    with replacing(path) as handle:
        figure.savefig(handle, format="png", metadata={"Software": None})


def _draw_counts(axes: Axes, counts: Sequence[Sequence[int]], high: int, most: int) -> None:
    """At most `most` bars of one width, a power of 2, for the (value, number) pairs up to `high`."""
    values, numbers = np.array(counts).T
    width = next(1 << power for power in itertools.count() if high <= most << power)
    edges = np.arange(-0.5 if values[0] == 0 else 0.5, high + width + 0.5, width)
    axes.hist(values, edges, weights=numbers, color=_BLUE, rwidth=0.92)
    axes.set_xlim(0, high * 1.02)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
