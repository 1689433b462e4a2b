"""Memory of a training process beside the mapped store: as docs/data.md says."""

from __future__ import annotations

import sys

from tests.processes import run_command

# Sentences of 10 to 30 tokens, 40 a document. The ids are never touched, and so take no memory.
HOLDER = """
import numpy as np
from data.options import BatchingConfig, MaskingConfig
from data.pretraining.batches import PretrainingBatches
from data.pretraining.sources import TextSource
from data.sharing import Share
from data.tokenizing.vocab import vocabulary_from_tokens
from data.store.tokens import TokenStore

def held():
    with open("/proc/self/status") as handle:
        return 1024 * int(next(line for line in handle if line.startswith("RssAnon")).split()[1])

vocab = vocabulary_from_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
count = 5_000_000
sentences = np.zeros(count + 1, np.int64)
np.cumsum(np.random.default_rng(0).integers(10, 31, count), out=sentences[1:])
documents = np.arange(0, count + 1, 40)
store = TokenStore(np.zeros(sentences[-1], np.uint16), sentences, documents, vocab.sha256)
source = TextSource(store, vocab, MaskingConfig(128, 0.1, 0.15, 20))
before = held()
batches = PretrainingBatches(source, BatchingConfig(8192, True, 32), 0, Share.of(0, 1))
one = batches.order(0)
print(len(one.samples), held() - before)
batches._orders.prepare(1)
batches.order(1)
print(held() - before)
"""


def test_bytes_a_sample_of_one_epoch_and_of_two():
    words = run_command([sys.executable, "-c", HOLDER]).check().stdout.split()
    samples, one, two = map(int, words)
    assert samples > 1_000_000
    # The heap of a thread keeps some, whatever the number of samples.
    assert 16 * samples < one < 17 * samples + 6_000_000, one / samples
    assert 33 * samples < two < 34 * samples + 25_000_000, two / samples
