"""Pretraining on this machine's CPU against Hugging Face on PyTorch: the same training, and its time.

    python -m bench.pretraining [--json pretraining.json] [--plot pretraining.png]
    python -m bench.pretraining --quick

Both begin with the same weights and take the same batches of real text in the same order at the same rates,
with LAMB, clipping and no dropout, in float32; LAMB in PyTorch is written after the paper. They do the same
in exact arithmetic, so their losses differ by rounding, which a training multiplies with every step: the
first steps show whether something else differs, and the whole curves are held against the spread of ours
over seeds, each with weights and an order of its own.

Contestants take a chunk of steps each, in turns; reading losses and evaluating is not timed. The peer
computes the masked positions only, which is faster than the model's own loss, and has malloc keep freed
memory; all have the same number of threads.

The text is the embedded one, or that of --input; every 20th document is held out. The peer needs an
environment of its own with torch and transformers; without one it is left out.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from base.command_line import path_name, positive, positive_int
from base.drawing import COLOURS, new_figure
from base.files import replacing
from bench.finetune import random_weights
from bench.harness import Measurement, begin, finish, given_text, in_turns, note
from bench.trainings import (
    BEGIN,
    EVALUATION,
    LIMIT,
    MODULES,
    OURS,
    PRETRAINING,
    TITLES,
    TORCH,
    Settings,
    model_name,
    training_name,
    write_batches,
    write_settings,
)
from bench.workers import Contestants
from bert.weights.exporting import export
from data.options import BatchingConfig, MaskingConfig
from data.pretraining.batches import PretrainingBatches
from data.pretraining.sources import TextSource
from data.sharing import Share
from data.store.tokens import cached_store
from data.text.corpus import documents
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.vocab import load_vocab
from training.entry import exit_code

FIRST = 200  # steps whose losses must agree to TOLERANCE
TOLERANCE = 1e-4  # relative
HELD_OUT_EVERY = 20  # documents
LENGTH = 64  # tokens of a sequence
MASKED, EVALUATED_MASKED = 0.4, 0.15
EVALUATION_TOKENS = 20_000
GOALS = 3  # held-out losses for which seconds are compared


class Training(NamedTuple):
    """A contestant's training of a seed: the loss of each step; the masked-LM loss on the evaluation's
    batches before the first step and after each chunk, in nats; the seconds of each chunk."""

    losses: list[float]
    held_out: list[float]
    seconds: list[float]

    def seconds_to(self, loss: float) -> float | None:
        """Seconds of training after which the held-out loss was first that low, between evaluations
        interpolated; None where it never was."""
        held_out, spent = self.held_out, [0.0, *itertools.accumulate(self.seconds)]
        for number, (before, after) in enumerate(zip(held_out, held_out[1:])):
            if after <= loss < before:
                share = (before - loss) / (before - after)
                return spent[number] + share * (spent[number + 1] - spent[number])
        return None


Trainings = Mapping[str, Mapping[int, Training]]  # contestant -> seed


def prepare(options: argparse.Namespace, settings: Settings, folder: str) -> str:
    """Writes weights, settings and batches into `folder`; returns the sizes for people. Raises InputError."""
    paths, vocab_path = given_text(options, os.path.join(folder, "text"))
    vocabulary = load_vocab(vocab_path)
    parts: dict[bool, list[str]] = {False: [], True: []}
    for number, document in enumerate(documents(paths)):
        parts[number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1].append("\n".join(document) + "\n")
    sources = {}
    for held_out, texts in parts.items():
        name = os.path.join(folder, "held_out" if held_out else "taught")
        with open(f"{name}.txt", "w", encoding="utf-8") as file:
            file.write("\n".join(texts))
        store = cached_store([f"{name}.txt"], TokenizerSettings(vocabulary), name)
        share = EVALUATED_MASKED if held_out else MASKED
        masking = MaskingConfig(LENGTH, masked_lm_prob=share, max_predictions_per_seq=round(share * LENGTH))
        sources[held_out] = TextSource(store, vocabulary, masking)
    batching = BatchingConfig(options.batch_size, True, 1)
    write_settings(folder, settings)
    for seed in settings.seeds:
        batches = PretrainingBatches(sources[False], batching, seed, Share.of(0, 1))
        _write(folder, training_name(seed), batches, options.steps)
        model = os.path.join(folder, model_name(PRETRAINING, seed))
        os.makedirs(model)
        weights = random_weights(options.model, list(vocabulary.tokens), seed, heads=True)
        export(weights, model, "huggingface")
    evaluation = PretrainingBatches(sources[True], batching, 0, Share.of(0, 1))
    most = min(evaluation.blocks_in_epoch(0), -(-EVALUATION_TOKENS // options.batch_size))
    _write(folder, EVALUATION, evaluation, most)
    return (
        f"{weights.config.description}, vocabulary {len(vocabulary)}: {options.steps} steps of "
        f"{options.batch_size} tokens in sequences of up to {LENGTH}, {MASKED:.0%} masked, "
        f"peak rate {options.lr:g}"
    )


def _write(folder: str, name: str, batches: PretrainingBatches, most: int) -> None:
    write_batches(folder, name, [make()._asdict() for _, make in itertools.islice(batches.tasks(), most)])


def measure(settings: Settings, folder: str, torch_python: str | None) -> tuple[Trainings, Contestants]:
    """Trains all seeds of ours and seed 0 of the peer, a chunk in turns."""
    chosen = {
        f"{name}-{seed}": (name, seed) for name, seed in (*((OURS, s) for s in settings.seeds), (TORCH, 0))
    }
    answers: dict[str, list[dict[str, Any]]] = {key: [] for key in chosen}

    def take(key: str, request: str) -> None:
        answer = running.step(key, LIMIT, request)
        if answer is not None:
            answers[key].append(answer)

    with Contestants(torch_python) as running:
        for key, (name, seed) in chosen.items():
            running.start(key, _title(name, seed), MODULES[name], [PRETRAINING, folder, str(seed)])
            take(key, BEGIN)
        for number in range(settings.chunks):
            for key in in_turns(running.keys, number):
                take(key, str(number))
            shown = ", ".join(
                f"{_title(*chosen[key])} {answers[key][-1]['seconds']:.1f} s" for key in running.keys
            )
            step = min((number + 1) * settings.chunk, settings.num_steps)
            note(f"  step {step}/{settings.num_steps}: {shown}")
        running.end()
    trainings: dict[str, dict[int, Training]] = {}
    for key in running.keys:
        name, seed = chosen[key]
        losses = [loss for each in answers[key] for loss in each["losses"]]
        seconds = [each["seconds"] for each in answers[key][1:]]  # BEGIN takes no step
        held_out = [each["held_out"] for each in answers[key]]
        trainings.setdefault(name, {})[seed] = Training(losses, held_out, seconds)
    return trainings, running


def _title(name: str, seed: int) -> str:
    return TITLES[name] if name == TORCH else f"{TITLES[name]}, seed {seed}"


def compare(trainings: Trainings, steps_of_chunk: int) -> dict[str, Any]:
    """Figures of both contestants' seed 0 against each other. `first`: the largest relative difference of
    losses in the first steps; `curve`: at every evaluation the difference of held-out losses, and ours'
    standard deviation over seeds (None for one seed); `seconds`: to reach some held-out losses."""
    ours, torch = trainings[OURS][0], trainings[TORCH][0]
    first = (np.abs(np.subtract(ours.losses, torch.losses)) / torch.losses)[:FIRST]
    seeds = np.array([each.held_out for each in trainings[OURS].values()])
    difference = np.abs(np.subtract(ours.held_out, torch.held_out))
    worst = max(min(ours.held_out), min(torch.held_out))
    # Losses that both reach, equally far apart in the second half of what was learned.
    goals = np.linspace((ours.held_out[0] + worst) / 2, worst, GOALS + 1)[1:]
    seconds = []
    for goal in goals.tolist():
        taken = {TITLES[OURS]: ours.seconds_to(goal), TITLES[TORCH]: torch.seconds_to(goal)}
        seconds.append({"held_out_loss": goal, "seconds": taken})
    return {
        "first": {"steps": len(first), "largest": float(first.max()), "step": int(first.argmax()) + 1},
        "curve": {
            "steps": [number * steps_of_chunk for number in range(len(difference))],
            "difference": difference.tolist(),
            "deviation": seeds.std(axis=0, ddof=1).tolist() if len(seeds) > 1 else None,
        },
        "seconds": seconds,
    }


def lines_of(figures: Mapping[str, Any]) -> list[str]:
    """The comparison for people."""
    first, curve = figures["first"], figures["curve"]
    verdict = "within" if first["largest"] <= TOLERANCE else "beyond"
    lines = [
        f"losses of the first {first['steps']} steps: largest relative difference {first['largest']:.1e}, at "
        f"step {first['step']}, {verdict} {TOLERANCE:g}"
    ]
    if curve["deviation"]:
        # At the first evaluation nothing has been trained; the seeds' weights differ, the contestants' not.
        shares = np.divide(curve["difference"], curve["deviation"])[1:]
        worst = int(shares.argmax()) + 1
        where = "within" if shares[worst - 1] <= 1 else "beyond"
        lines.append(
            f"held-out losses: largest difference {curve['difference'][worst]:.4f}, deviation over seeds "
            f"{curve['deviation'][worst]:.4f}, at step {curve['steps'][worst]}: {where} the spread; "
            f"at the end {curve['difference'][-1]:.4f} against {curve['deviation'][-1]:.4f}"
        )
    for each in figures["seconds"]:
        ours, torch = each["seconds"].values()
        if ours and torch:
            lines.append(
                f"to a held-out loss of {each['held_out_loss']:.3f}: ours {ours:.1f} s, "
                f"PyTorch {torch:.1f} s, {torch / ours:.2f} times as long"
            )
    return lines


def plot(path: str, trainings: Trainings, settings: Settings) -> None:
    """Losses by step, and held-out losses by seconds of training."""
    figure = new_figure((11, 4.5))
    left, right = figure.subplots(1, 2)
    styles = {OURS: {"color": COLOURS[0], "linestyle": "-"}, TORCH: {"color": COLOURS[1], "linestyle": "--"}}
    for name, by_seed in trainings.items():
        for seed, training in by_seed.items():
            look: Any = {**styles[name], "alpha": 1.0 if seed == 0 else 0.35, "label": _title(name, seed)}
            losses, chunk = training.losses, settings.chunk
            means = [float(np.mean(losses[at : at + chunk])) for at in range(0, len(losses), chunk)]
            steps = [min(at + chunk, len(losses)) for at in range(0, len(losses), chunk)]
            left.plot(steps, means, **look)
            if seed == 0:
                spent = [0.0, *itertools.accumulate(training.seconds)]
                right.plot(spent, training.held_out, **look)
    left.set(xlabel="step", ylabel="loss in nats, mean of a chunk", title="the same training")
    right.set(xlabel="seconds of training", ylabel="held-out masked-LM loss in nats", title="and its time")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    with replacing(path) as file:
        figure.savefig(file, format="png")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 1 where a contestant failed."""
    parser = Measurement("pretraining", __doc__, "bert_1_64_1, 40 steps of 512 tokens, 2 seeds")
    option = parser.option
    option("--model", "bert_2_128_2", "bert_1_64_1", "bert_LAYERS_UNITS_HEADS", metavar="NAME")
    option("--steps", 2000, 40, "of a training", type=positive_int, metavar="N")
    option("--chunk", 50, 10, "steps between evaluations", type=positive_int, metavar="N")
    option("--batch_size", 2048, 512, "of a step", type=positive_int, metavar="TOKENS")
    option("--seeds", 3, 2, "trainings of ours", type=positive_int, metavar="N")
    option("--lr", 0.01, None, "peak of LAMB's rate", type=positive)
    parser.text_options()
    text = "write a picture of both, a PNG"
    parser.add_argument("--plot", type=path_name, metavar="FILE", help=text)
    parser.contestants_options()
    options = parser.settle(parser.parse_args(arguments))
    settings = Settings(options.steps, list(range(options.seeds)), options.lr, chunk=options.chunk)
    here = begin(options)
    with tempfile.TemporaryDirectory() as folder:
        print(prepare(options, settings, folder), flush=True)
        trainings, running = measure(settings, folder, options.torch_python)
    both = 0 in trainings.get(OURS, {}) and TORCH in trainings
    figures = compare(trainings, options.chunk) if both else {}
    for name, by_seed in trainings.items():
        for seed, training in by_seed.items():
            print(
                f"{TITLES[name]}, seed {seed}: held-out loss {training.held_out[0]:.3f} to "
                f"{training.held_out[-1]:.3f} in {sum(training.seconds):.1f} s"
            )
    if figures:
        print("\n".join(lines_of(figures)), flush=True)
    if options.plot:
        plot(options.plot, trainings, settings)
    curves = {
        name: {str(seed): each._asdict() for seed, each in by_seed.items()}
        for name, by_seed in trainings.items()
    }
    finish(options, {"machine": here, "facts": running.facts, "trainings": curves, **figures})
    return 1 if running.failed else 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
