"""From the files of a run to a source of samples: tokenized or converted once a host, then mapped by all."""

from __future__ import annotations

import argparse
import os

from base.progress import Printed
from comm.base import Communicator
from data.pretraining.instance_source import StoredSource
from data.pretraining.sources import Source
from data.pretraining.text_source import RawSource, epoch_stores
from data.store.from_files import cached_instances
from data.store.tokens import TokenStore
from data.text.corpus import TextSettings
from data.tokenizing.tokenizer import TokenizerSettings
from training.inputs import DataFiles, Inputs
from training.plan import RunPlan


def open_source(
    options: argparse.Namespace, inputs: Inputs, data: DataFiles, plan: RunPlan, communicator: Communicator
) -> tuple[Source, TokenStore | None]:
    """The samples of `data`, and the token store where they come from text (that of epoch 0 where the
    tokenizer samples). Every rank calls it.

    Text is tokenized, and files with masks are converted, into the cache by the first rank of each host, with
    all its cores; the others wait, then map the same files. Hosts that share the cache share the work.
    Raises InputError naming the file and the line or record for bad data.
    """
    if communicator.local_rank != 0:
        communicator.barrier()
    opened = _open(options, inputs, data, plan)
    if communicator.local_rank == 0:
        communicator.barrier()
    return opened


def _open(
    options: argparse.Namespace, inputs: Inputs, data: DataFiles, plan: RunPlan
) -> tuple[Source, TokenStore | None]:
    cache = os.path.expanduser(options.cache_dir or os.path.join(options.ckpt_dir, "tokens"))
    cores = os.cpu_count() or 1
    vocabulary = inputs.vocabulary
    if data.kind == "instances":
        store = cached_instances(
            data.paths, inputs.vocab_size, cache, cores, options.skip_bad_records, Printed()
        )
        return StoredSource(store, vocabulary.pad_id if vocabulary else 0), None
    assert vocabulary is not None, "text needs a vocabulary; training.inputs sees to it"
    if data.kind == "store":
        stores = TokenStore.open(data.paths[0])
    else:
        model = os.path.expanduser(options.sentencepiece) if options.sentencepiece else None
        stores = epoch_stores(
            data.paths,
            lambda seed: TokenizerSettings(
                vocabulary, model, options.cased, options.sp_nbest, options.sp_alpha, seed
            ),
            cache,
            cores,
            TextSettings(options.text_format, options.split_sentences, options.skip_bad_records),
            Printed(),
        )
    source = RawSource(
        stores,
        vocabulary,
        inputs.max_seq_length,
        options.short_seq_prob,
        options.masked_lm_prob,
        plan.max_predictions_per_seq,
        options.whole_word_mask,
        options.static_masks,
    )
    return source, stores if isinstance(stores, TokenStore) else stores(0)
