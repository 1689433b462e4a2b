#!/usr/bin/env python3
"""Judge minimal pairs of sentences, such as BLiMP's, by the pseudo-log-likelihood of a pretrained BERT.

python score.py runs/own blimp/data
python score.py runs/own pairs.tsv.gz --json scores.json --plot scores.png
python score.py bert-base-uncased blimp/data/anaphor_number_agreement.jsonl --metric original
"""

from __future__ import annotations

from base.errors import explain_missing

if __name__ == "__main__":
    explain_missing()  # a library that is not installed

import json
import math
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Sequence

import numpy as np

from base.command_line import ScriptParser, path_name, path_names, show_anything, whole
from base.errors import InputError
from base.files import replacing
from base.memory import ARENAS, LOADED, check_addresses
from base.options import add_options, option, options_in, taken
from base.progress import Printed
from base.tables import EMPTY, Row, Table, terminal
from base.threads import set_threads
from bert.weights.names import MASKED_LM
from bert.weights.tensors import Weights
from data.minimal_pairs import (
    METRICS,
    WORD_L2R,
    Accuracies,
    Accuracy,
    MinimalPair,
    Sentence,
    accuracies,
    batches,
    draw_accuracies,
    pair_files,
    read_pairs,
    to_score,
    tokens_in,
)
from data.tokenizing.tokenizer import lists_of
from data.tokenizing.vocab import Vocabulary
from training.entry import exit_code
from training.start.pretrained import (
    PretrainedConfig,
    add_pretrained_options,
    described_tokenizer,
    find_described,
    pretrained_config,
)

_WEIGHTS, _PAIRS = "WEIGHTS", "PAIRS"
_EPILOG = """WEIGHTS are recognised by their content, as predict.py does. PAIRS are BLiMP's folder of *.jsonl,
or .jsonl, .tsv and .csv files, also packed, with the columns sentence_good, sentence_bad, UID and
linguistics_term. docs/score.md is the guide."""


@dataclass(frozen=True)
class ScoreConfig:
    """One command. `pairs`: the files."""

    weights: str
    pairs: tuple[str, ...]
    described: PretrainedConfig
    metric: str = option(
        "word_l2r: a token is predicted with the later pieces of its word masked, too (Kauf and Ivanova "
        "2023); original: with nothing else masked (Salazar et al. 2020)",
        choices=METRICS,
        default=WORD_L2R,
    )
    json: str | None = option("write all figures as JSON", path_name, "FILE")
    plot: str | None = option("write a picture of the paradigms' accuracies", path_name, "FILE.png")
    batch_tokens: int = option(
        "tokens computed together", whole(1, 1 << 20, "beyond which nothing gets faster"), default=4096
    )
    dtype: str = option(
        "bfloat16: rounds the factors of products, which is faster on processors with AMX and decides close "
        "pairs otherwise (docs/score.md)",
        choices=["float32", "bfloat16"],
        default="float32",
    )
    operators: str = option(
        "as the training scripts have it (default: fused where they can be used)",
        choices=["auto", "fused", "mxnet"],
        default="auto",
    )
    sentencepiece: str | None = option("the SentencePiece .model file that they were trained with", path_name)


@dataclass(frozen=True)
class Judged:
    """Minimal pairs and what is to be computed for them.

    Attributes:
        sentences: each once, however many pairs it is in.
        good, bad: (pairs,) numbers of sentences.
        unknown, tokens: how many of the pairs' tokens are [UNK], and how many they have.
    """

    pairs: Sequence[MinimalPair]
    sentences: Sequence[Sentence]
    good: np.ndarray
    bad: np.ndarray
    unknown: int
    tokens: int


def parse(arguments: Sequence[str] | None) -> ScoreConfig:
    """The command line. Raises InputError, also for files that cannot be read or written."""
    parser = ScriptParser(
        prog="score.py",
        description=__doc__,
        epilog=_EPILOG,
    )
    text = "a run's folder, FOLDER:STEP, or weights in any format"
    parser.add_argument("weights", type=path_name, metavar=_WEIGHTS, help=text)
    text = "files, folders and patterns"
    parser.add_argument("pairs", type=path_names, metavar=_PAIRS, nargs="+", help=text)
    table = options_in(ScoreConfig)
    add_options(parser.add_argument, table, "metric json plot batch_tokens dtype operators")
    group = parser.add_argument_group("about the weights, where the files beside them do not say it")
    add_pretrained_options(group.add_argument)
    add_options(group.add_argument, table, "sentencepiece")
    options = parser.parse_intermixed_args(arguments)
    if options.vocab and options.sentencepiece:
        raise InputError("--vocab and --sentencepiece exclude each other: each brings its own vocabulary")
    files = tuple(pair_files(",".join(options.pairs), _PAIRS))
    for name in ("json", "plot"):
        path = getattr(options, name)
        if path is not None and (os.path.isdir(path) or not os.path.isdir(os.path.dirname(path) or ".")):
            raise InputError(f"--{name} {path}: no file can be there; name a file in a folder that exists")
        if path is not None and os.path.realpath(path) in map(os.path.realpath, files):
            raise InputError(f"--{name} {path} would replace one of {_PAIRS}; name another file")
    if options.plot is not None and not options.plot.lower().endswith(".png"):
        raise InputError(f"--plot {options.plot}: the picture is a PNG; name it so")
    return taken(ScoreConfig, options, pairs=files, described=pretrained_config(options))


def prepare(config: ScoreConfig) -> tuple[Weights, Vocabulary, Judged]:
    """Opens the weights, reads and tokenizes the pairs. MXNet is not imported.

    Raises:
        InputError: as `find_described`, `described_tokenizer`, `read_pairs`; weights without a masked-LM
            head; naming the line, for a sentence without tokens or with more than the model has positions
            for.
    """
    weights = find_described(config.weights, _WEIGHTS, config.described)
    if MASKED_LM in weights.missing:
        raise InputError(f"{_WEIGHTS}: scores need the {MASKED_LM}, which {weights.source} lacks")
    settings = described_tokenizer(weights, _WEIGHTS, config.described, config.sentencepiece)
    pairs = read_pairs(config.pairs, _PAIRS)
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    encoded = [tuple(ids) for ids in lists_of(*settings.build().encode(texts))]
    most = weights.config.positions - 2
    for index, ids in enumerate(encoded):
        if not 1 <= len(ids) <= most:
            problem = (
                f"{len(ids) + 2} tokens with [CLS] and [SEP], but {weights.source} has "
                f"{weights.config.positions} positions; remove the pair or shorten it"
                if ids
                else "no token is left of a sentence; remove the pair"
            )
            raise InputError(f"{pairs[index // 2].place}: {problem}")
    # A sentence has one score, whatever batches its copies are in: pairs of the same tokens are exact ties.
    numbers = {ids: number for number, ids in enumerate(dict.fromkeys(encoded))}
    order = np.array([numbers[ids] for ids in encoded])
    sentences = [to_score(ids, settings.vocabulary, config.metric) for ids in numbers]
    unknown = sum(ids.count(settings.vocabulary.unk_id) for ids in encoded)
    judged = Judged(pairs, sentences, order[::2], order[1::2], unknown, sum(map(len, encoded)))
    return weights, settings.vocabulary, judged


def scores(config: ScoreConfig, weights: Weights, vocabulary: Vocabulary, judged: Judged) -> np.ndarray:
    """The pseudo-log-likelihood of each sentence in nats, (sentences,) float64.

    Raises:
        InputError: operators or a dtype that cannot be had, or weights that cannot be read.
    """
    from tasks.pretraining.scores import Computing, TokenScorer

    scorer = TokenScorer(weights, Computing(config.operators, None, config.dtype))
    found = np.zeros(len(judged.sentences))
    progress, done = Printed(), 0
    progress.begin("scoring", tokens_in(judged.sentences), unit="tokens")
    try:
        for batch in batches(judged.sentences, vocabulary, config.batch_tokens):
            np.add.at(found, batch.sentences, scorer(batch))
            done += int(batch.lengths.sum())
            progress.update(done, {})
    finally:
        progress.end()
    return found


def report(
    config: ScoreConfig, weights: Weights, judged: Judged, found: Accuracies, seconds: float
) -> dict[str, Any]:
    """All figures, for JSON. Accuracies are shares, not percent."""
    computed = tokens_in(judged.sentences)
    return {
        "weights": weights.source,
        "model": weights.config.name,
        "pairs_from": list(config.pairs),
        "metric": config.metric,
        "dtype": config.dtype,
        "pairs": len(judged.pairs),
        "ties": found.mean_of_groups.ties,
        "mean_of_groups": _entry(found.mean_of_groups),
        "mean_of_paradigms": _entry(found.mean_of_paradigms),
        "groups": {each.group: _entry(each) for each in found.groups},
        "paradigms": {each.name: {"group": each.group, **_entry(each)} for each in found.paradigms},
        "tokens": judged.tokens,
        "unknown_tokens": judged.unknown,
        "computed_tokens": computed,
        "seconds": round(seconds, 3),
        "tokens_per_s": round(computed / seconds),
    }


def _entry(each: Accuracy) -> dict[str, Any]:
    error = None if math.isnan(each.error) else each.error
    return {"accuracy": each.accuracy, "standard_error": error, "pairs": each.pairs, "ties": each.ties}


def lines(judged: Judged, found: Accuracies, seconds: float) -> list[str]:
    """The figures for people, in percent."""
    head = ("pairs", "ties", "accuracy", "±")
    paradigms = Table(
        "accuracy by paradigm, in %",
        ("group", "paradigm", *head),
        [Row((each.group, each.name, *_cells(each))) for each in found.paradigms],
        names=2,
    )
    several = Counter(each.group for each in found.paradigms)
    groups = Table(
        "accuracy by group, in %",
        ("group", "paradigms", *head),
        [Row((each.group, str(several[each.group]), *_cells(each))) for each in found.groups],
        notes=["±: one standard error, by pairs. A tie, two sentences with one score, counts as half."],
    )
    computed = tokens_in(judged.sentences)
    means = [
        f"mean of {len(parts)} {name}: {100 * mean.accuracy:.2f} ± {_error(mean, 2)} %"
        for name, parts, mean in (
            ("paradigms", found.paradigms, found.mean_of_paradigms),
            ("groups", found.groups, found.mean_of_groups),
        )
    ]
    share = judged.unknown / judged.tokens
    return [
        *(terminal(paradigms), "", terminal(groups), ""),
        f"{len(judged.pairs):,} pairs of {judged.tokens:,} tokens, {share:.2%} of them [UNK]; "
        f"{computed:,} tokens in masked copies, {seconds:.1f} s, {computed / seconds:,.0f} tokens/s",
        *means,
    ]


def _cells(each: Accuracy) -> tuple[str, ...]:
    return f"{each.pairs:,}", f"{each.ties:,}", f"{100 * each.accuracy:.1f}", _error(each, 1)


def _error(each: Accuracy, places: int) -> str:
    return EMPTY if math.isnan(each.error) else f"{100 * each.error:.{places}f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code.

    Raises:
        InputError: bad input, before anything is printed.
    """
    show_anything()
    config = parse(arguments)
    weights, vocabulary, judged = prepare(config)
    check_addresses(LOADED, ARENAS, "MXNet")
    set_threads()  # before mxnet is imported below
    for note in weights.notes:
        print(f"note: {note}", file=sys.stderr)
    started = time.monotonic()
    found = scores(config, weights, vocabulary, judged)
    seconds = time.monotonic() - started
    if not np.isfinite(found).all():
        raise InputError(f"{_WEIGHTS} {weights.source}: a score is not finite in {config.dtype}")
    results = accuracies(judged.pairs, found[judged.good], found[judged.bad])
    print("\n".join(lines(judged, results, seconds)), flush=True)  # whatever becomes of the files
    if config.json is not None:
        with replacing(config.json) as file:
            content = json.dumps(report(config, weights, judged, results, seconds), indent=1, allow_nan=False)
            file.write(content.encode() + b"\n")
    if config.plot is not None:
        title = f"{config.weights}: mean of {len(results.groups)} groups "
        draw_accuracies(config.plot, title + f"{100 * results.mean_of_groups.accuracy:.1f} %", results)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
