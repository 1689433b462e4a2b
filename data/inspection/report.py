"""The report of data.inspect for a terminal, from the facts that --json prints as they are."""

from __future__ import annotations

import re
from typing import Any, Sequence

from data.inspection.decoding import MASKED, Instance, Style, Words, columns, fate, printable
from data.inspection.histogram import bars, bins
from data.tokenizing.vocab import Vocabulary

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
