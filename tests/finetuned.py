"""Small data and command lines for fine-tuning: questions and sentences over a tiny vocabulary."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.processes import words_of

ANIMALS = ["cat", "dog", "horse", "cow", "bird", "fish"]
COLOURS = ["red", "blue", "green", "black", "white", "brown"]
OTHERS = ["the", "is", "what", "colour", "of", "and", "in", "garden", "sits", "very", "it", "a"]
GOOD, BAD = ["good", "great", "fine", "lovely"], ["bad", "awful", "sad", "dull"]


def write_data(folder: Path) -> None:
    """Writes train.json and dev.json (SQuAD 2.0: the colour of an animal in a paragraph, or none of it),
    train.tsv and dev.tsv (a sentence with a good or a bad word), test.tsv (without labels), and vocab.txt."""
    rng = random.Random(0)
    for name, paragraphs in (("train", 16), ("dev", 6)):
        articles = [_article(f"{name}-{half}", paragraphs // 2, rng) for half in (1, 2)]
        data = {"version": "v2.0", "data": articles}
        (folder / f"{name}.json").write_text(json.dumps(data))
        lines = [_sentence(rng, label) for label in (0, 1) for _ in range(3 * paragraphs)]
        rng.shuffle(lines)
        (folder / f"{name}.tsv").write_text("".join(["sentence\tlabel\n", *lines]))
    (folder / "test.tsv").write_text("sentence\nthe cat is good .\n")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", *ANIMALS, *COLOURS, *OTHERS, *GOOD, *BAD]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))


def _article(name: str, paragraphs: int, rng: random.Random) -> dict[str, Any]:
    found = []
    for number in range(paragraphs):
        animals = rng.sample(ANIMALS, 4)
        colours = {animal: rng.choice(COLOURS) for animal in animals}
        # Longer than a window, now and then.
        filler = " ".join(["it sits in the garden ."] * rng.randint(0, 3))
        context = " ".join(f"the {animal} is {colours[animal]} . {filler}" for animal in animals)
        questions = []
        for asked in [*animals[:3], next(each for each in ANIMALS if each not in animals)]:
            answers = []
            if asked in colours:
                before = f"the {asked} is "
                answers = [{"text": colours[asked], "answer_start": context.index(before) + len(before)}]
            questions.append(
                {
                    "id": f"{name}-{number}-{asked}",
                    "question": f"what colour is the {asked} ?",
                    "answers": answers,
                    "is_impossible": not answers,
                }
            )
        found.append({"context": context, "qas": questions})
    return {"title": name, "paragraphs": found}


def _sentence(rng: random.Random, label: int) -> str:
    words = [rng.choice([*ANIMALS, *OTHERS]) for _ in range(rng.randint(3, 12))]
    words.insert(rng.randint(0, len(words)), rng.choice((BAD, GOOD)[label]))
    return f"{' '.join(words)}\t{label}\n"


def common(folder: Path, **changes: Any) -> dict[str, Any]:
    """Options that both scripts have, for random weights."""
    return {
        "model": "bert_2_32_2", "vocab": folder / "vocab.txt", "batch_size": 8, "lr": "3e-3", "seed": 3,
        "log_interval": 1, "peak_tflops": 1, "progress": "lines", "keep_checkpoints": 0, **changes,
    }  # fmt: skip


def squad(folder: Path, output: Path, **changes: Any) -> list[str]:
    """The command line of finetune_squad.py."""
    options = {
        **common(folder), "train_file": folder / "train.json", "dev_file": folder / "dev.json",
        "version_2": True, "max_seq_length": 48, "doc_stride": 16, "max_query_length": 12,
        "output_dir": output,
    }  # fmt: skip
    return words_of({**options, **changes})


def classifier(folder: Path, output: Path, **changes: Any) -> list[str]:
    """The command line of finetune_classifier.py."""
    options = {
        **common(folder), "train_file": folder / "train.tsv", "dev_file": folder / "dev.tsv",
        "max_seq_length": 16, "output_dir": output,
    }  # fmt: skip
    return words_of({**options, **changes})
