"""Runs in this process of a model of a few thousand parameters on random tokens."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any, Callable, Sequence

from comm.local import LocalCommunicator
from tasks.pretraining.task import Pretraining
from training.inputs import Part, check_parts
from training.options import parse_options, stage_config, stage_options
from training.stopping import StopRequest
from training.train import train_stages

# A bert_config.json of bert_1_16_2; the model of these runs is smaller.
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 512, "type_vocab_size": 2,
}  # fmt: skip
SHAPE = {**SIZES, "intermediate_size": 32, "max_position_embeddings": 16, "vocab_size": 40}
TINY = [
    *("--operators", "mxnet", "--dummy_data_len", "16", "--batch_size", "2", "--lr", "0.01"),
    *("--warmup_ratio", "0.2", "--progress", "none", "--num_data_workers", "0", "--peak_tflops", "1"),
]
SANE = ("--num_steps", "40", "--ckpt_interval", "2", "--log_interval", "1", "--seed", "3")


def command(folder: Path, *words: Any) -> list[str]:
    """The options of a run; its model's configuration is written beside its folder."""
    model = folder.parent / "bert_config.json"
    model.write_text(json.dumps(SHAPE))
    return [*TINY, "--config_file", str(model), "--ckpt_dir", str(folder), *map(str, words)]


def parts_of(words: Sequence[str]) -> list[Part]:
    """The checked stages of a command line."""
    return check_parts(map(stage_config, stage_options(parse_options(words, ""))))


def train(words: Sequence[str], communicator: Any = None, stop: StopRequest | None = None) -> int:
    """Trains as the scripts do, in this process; the exit code."""
    return train_stages(parts_of(words), Pretraining(), communicator or LocalCommunicator(), stop)


def trained(folder: Path, *words: Any, communicator: Any = None) -> int:
    """Runs the command; its exit code."""
    return train(command(folder, *words), communicator)


class Meeting(LocalCommunicator):
    """Calls `act` in the `number`-th step, when the ranks agree on what came of it. With `finite`
    only those steps count that were, or were not."""

    def __init__(self, number: int, act: Callable[[], Any], finite: bool | None = None):
        self.left, self.act, self.finite = number, act, finite

    def all_agree(self, flags: Any) -> list[bool]:
        if len(flags) > 2 and self.finite in (None, flags[0]):  # a step's: finite, keep_going, saving, time
            self.left -= 1
            if self.left == 0:
                self.act()
        return super().all_agree(flags)


class Stopping(Meeting):
    """Sends this process a signal in its `number`-th step that was `finite`, or was not."""

    def __init__(self, number: int, finite: bool):
        super().__init__(number, lambda: signal.raise_signal(signal.SIGTERM), finite)
