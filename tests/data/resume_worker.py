"""A stand-in for a training run: consumes batches, logs what they were, saves its position now and then.

    python -m tests.data.resume_worker '{"store": ..., "vocab": ..., "ranks": [0, 1], "world_size": 2, ...}'

Takes the batches of the `ranks` given, one each a step, from the position in the file `position` (0 without
it) until `blocks` have been consumed. Every batch makes a line in the file `log`: position before the step,
rank, epoch, samples, and SHA-256 of the batch. `pause` seconds pass in every step.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time

from base.files import replacing
from data.options import BatchingConfig, MaskingConfig
from data.pretraining.batches import PretrainingBatches, prefetched
from data.pretraining.sources import TextSource
from data.sharing import Share
from data.store.tokens import TokenStore
from data.tokenizing.vocab import load_vocab

OPTIONS = {"batching": BatchingConfig(700, True, 4), "seed": 12}
STEPS_PER_SAVE = 3


class LoggedSource(TextSource):
    """Remembers what each batch was made from."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.made = {}

    def collate(self, seed, epoch, indices, padded_length):
        batch = super().collate(seed, epoch, indices, padded_length)
        self.made[digest(batch)] = (epoch, indices.tolist())
        return batch


def digest(batch):
    text = hashlib.sha256()
    for array in batch:
        text.update(repr((array.shape, array.dtype.str)).encode())
        text.update(array.tobytes())
    return text.hexdigest()


def main(settings):
    source = LoggedSource(
        TokenStore.open(settings["store"]), load_vocab(settings["vocab"]), MaskingConfig(64, 0.3, 0.15, 10)
    )
    position = 0
    if os.path.exists(settings["position"]):
        with open(settings["position"], encoding="utf-8") as handle:
            position = int(handle.read())
    feeds = []
    for rank in settings["ranks"]:
        batches = PretrainingBatches(source, share=Share.of(rank, settings["world_size"]), **OPTIONS)
        batches.seek(position)
        feeds.append(prefetched(batches, 6, settings["workers"]))
    consumed = steps = 0
    with open(settings["log"], "a", encoding="utf-8") as log:
        while consumed < settings["blocks"]:
            after = set()
            for rank, feed in zip(settings["ranks"], feeds):
                following, batch = next(feed)
                after.add(following)
                key = digest(batch)
                log.write(json.dumps([position, rank, *source.made.pop(key), key]) + "\n")
                log.flush()
            (position,) = after
            consumed += settings["world_size"]
            steps += 1
            time.sleep(settings["pause"])
            if steps % STEPS_PER_SAVE == 0:
                with replacing(settings["position"]) as handle:
                    handle.write(str(position).encode())
    for feed in feeds:
        feed.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
