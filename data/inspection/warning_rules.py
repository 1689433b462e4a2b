"""Warnings about the figures of data.inspect, by rules of thumb."""

from __future__ import annotations

from typing import Any, Sequence


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


def _counted(facts: dict[str, Any], values: Sequence[int] | range) -> int:
    return sum(count for value, count in facts["counts"] if value in values)
