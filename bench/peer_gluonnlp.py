"""Worker: GluonNLP's BERT with MXNet's LAMB, as GluonNLP's own pretraining scripts drive them.

    python -m bench.peer_gluonnlp step gluonnlp MODEL 128|512 float32

See bench/workers.py for what it reads and writes. One thing is not as it comes: all cores compute (the parent
sets OMP_NUM_THREADS), where MXNet by itself takes half of them.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import gluonnlp
import mxnet as mx
import numpy as np
from gluonnlp.model.bert import BERTEncoder, BERTModel

from bench.work import DROPOUT, VOCABULARY, Work
from bench.workers import ReadResults, TakeStep, Unsupported, serve
from data.pretraining.batches import dummy_batch


def set_up(work: Work) -> tuple[TakeStep, dict[str, Any]]:
    if work.peers_dtype != "float32":
        raise Unsupported("GluonNLP's BERT trains in float32 on CPUs")
    size = work.config
    encoder = BERTEncoder(
        num_layers=size.layers,
        units=size.units,
        hidden_size=size.hidden,
        max_length=512,
        num_heads=size.heads,
        dropout=DROPOUT,
    )
    model = BERTModel(
        encoder, vocab_size=VOCABULARY, token_type_vocab_size=2, units=size.units, embed_size=size.units
    )
    model.initialize(mx.init.Normal(0.02))
    mlm_loss, nsp_loss = mx.gluon.loss.SoftmaxCELoss(), mx.gluon.loss.SoftmaxCELoss()
    for block in (model, mlm_loss, nsp_loss):
        block.hybridize(static_alloc=True, static_shape=True)
    options = {"learning_rate": 1e-4, "wd": 0.01, "bias_correction": False}
    trainer = mx.gluon.Trainer(model.collect_params(), "lamb", options, update_on_kvstore=False)

    batch = dummy_batch(*work.batch, VOCABULARY, np.random.default_rng(0))
    ids, segments, lengths, positions, labels, _, is_next = (
        mx.nd.array(each, dtype="float32") for each in batch
    )

    def take_step() -> ReadResults:
        with mx.autograd.record():
            _, _, next_sentence, scores = model(ids, segments, lengths, positions)
            mlm = mlm_loss(scores.reshape((-1, VOCABULARY)), labels.reshape(-1)).mean()
            loss = mlm + nsp_loss(next_sentence, is_next).mean()
        loss.backward()
        trainer.step(1)
        mx.nd.waitall()
        return lambda: {"loss": float(loss.asscalar())}

    facts = {
        "MXNet": mx.__version__,
        "GluonNLP": gluonnlp.__version__,
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "gflop": work.gflop(),
    }
    return take_step, facts


if __name__ == "__main__":
    serve(lambda: set_up(Work.read(sys.argv[3:])))
