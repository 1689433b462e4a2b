"""The files of a pretraining run: all that can be checked before mxnet is imported and before any work
starts, and the data opened."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import dataclass, field, replace
from typing import Iterable

import numpy as np

from base.command_line import Pair
from base.errors import InputError
from base.launchers import launched_rank
from base.progress import Printed
from comm.base import Communicator
from data.opening import (
    INSTANCES,
    NOTHING,
    TEXT,
    DataFiles,
    OpenedData,
    check_instances,
    check_text,
    common_vocabulary,
    fingerprint,
    fingerprint_of_store,
    named_data,
    open_data,
)
from data.options import MAX_POSITIONS, DataConfig, MaskingConfig
from data.pretraining.batches import PretrainingBatches, control_batches, dummy_batch, evaluation_batches
from data.pretraining.prefetch import Feed
from data.pretraining.sources import Batch
from data.sharing import Share
from data.store.tokens import entropy, token_counts
from data.tokenizing.vocab import Vocabulary
from lamb_paper import STAGE_LENGTHS, STAGES
from training.config import PUBLISHED_VOCABULARIES, RunConfig
from training.plan import RunPlan, make_plan
from training.report import Reporter
from training.run_inputs import About, EvaluationFeed, Part, RunInputs
from training.start.initial import Wanted, find_initial
from training.start.start import Start, check_start
from training.start.vocabulary import check_room

MOST_PADDING = 128  # rows more than tokens: NVIDIA pads to multiples of 8, for its matrix units, others to 64
# Those that a data position depends on.
DATA_OPTIONS = (
    "data",
    "raw",
    "text_format",
    "split_sentences",
    "batch_size",
    "use_avg_len",
    "num_buckets",
    "max_seq_length",
    "short_seq_prob",
    "single_sentences",
)


@dataclass(frozen=True)
class Inputs(RunInputs):
    """The data of pretraining, and the parameters that it begins with.

    `train` is nothing where random tokens (--dummy_data_len) stand for it. `vocabulary` is None where it is
    that of --dataset_name, to be downloaded, or none is needed. `config` has a cache and the sequence length.
    """

    train: DataFiles = DataFiles(NOTHING)
    evaluation: DataFiles = DataFiles(NOTHING)
    config: DataConfig = field(default_factory=DataConfig)

    @property
    def trains(self) -> bool:
        """Whether there is something to train on."""
        return bool(self.train.kind or self.config.dummy_data_len)

    @property
    def reads_text(self) -> bool:
        """Whether something has to be tokenized, for which there must be a vocabulary."""
        return TEXT in (self.train.kind, self.evaluation.kind)

    def completed(self, config: RunConfig, communicator: Communicator) -> Inputs:
        """The inputs with the vocabulary of --dataset_name where text needs one. Every rank calls it."""
        if self.vocabulary is not None or not self.reads_text:
            return self
        from bert.weights.published import download_vocabulary  # MXNet is running by now

        # One rank of each host downloads, the others then find it on disk.
        if communicator.local_rank != 0:
            communicator.barrier()
        vocabulary = download_vocabulary(config.model.dataset_name)
        if communicator.local_rank == 0:
            communicator.barrier()
        return replace(self, vocabulary=vocabulary)

    def contents(self, config: RunConfig) -> dict[str, str]:
        """The vocabulary, and the data by samples; the feeds have the fingerprints of all of it."""
        found, tokenizer = super().contents(config), config.data.tokenizer
        if tokenizer.sentencepiece:
            model = DataFiles("model", (os.path.expanduser(tokenizer.sentencepiece),))
            found["the content of --sentencepiece"] = fingerprint(model)
        for flag, data in (("--data", self.train), ("--data_eval", self.evaluation)):
            if data.kind:
                found[f"the content of {flag}"] = fingerprint(data)
        return found

    def open_ahead(self, first: RunInputs, communicator: Communicator) -> None:
        """Tokenizes or converts the data of this stage into the cache, where it is not that of `first`."""
        assert isinstance(first, Inputs), "both stages read the same kind"
        for own, others in ((self.train, first.train), (self.evaluation, first.evaluation)):
            if own.kind and own != others:
                open_source(self, own, communicator)

    def num_steps(self, config: RunConfig, seed: int, communicator: Communicator) -> int | None:
        """Steps as given; of --num_epochs, those that the first pass has, times the number of passes."""
        epochs, together = config.optimization.num_epochs, config.batch.micro_batches
        if epochs is None:
            return config.optimization.num_steps
        source = open_source(self, self.train, communicator).source
        batches = PretrainingBatches(source, self.config.batching, seed, Share(0, 1, together))
        return math.ceil(epochs * batches.blocks_in_epoch(0) / together)

    def plan(self, config: RunConfig, world_size: int) -> RunPlan:
        """As `make_plan`."""
        length, stage = self.max_seq_length, config.start.stage
        return make_plan(config.batch, config.optimization, world_size, length, stage)

    def open_training(
        self, config: RunConfig, plan: RunPlan, seed: int, communicator: Communicator, reporter: Reporter
    ) -> Feed[Batch] | None:
        """This rank's part of --data, or random tokens with --dummy_data_len; None without either."""
        batch, length = config.batch, config.data.dummy_data_len
        share = Share(communicator.rank, communicator.size, batch.micro_batches).check()
        if length:
            rows = max(1, batch.batch_size // length) if batch.use_avg_len else batch.batch_size
            rng = np.random.default_rng([seed, communicator.rank])
            made = dummy_batch(rows, length, plan.max_predictions_per_seq, self.vocab_size, rng)
            make = itertools.repeat(lambda: made)
            return Feed(lambda position: zip(itertools.count(position + 1), make), len(share.own))
        if not self.train.kind:
            return None
        opened = open_source(self, self.train, communicator)
        source, store = opened.source, opened.tokens
        counts = None
        if store is not None and communicator.rank == 0:
            counts = token_counts(store)
            reporter.note(
                f"training text: {store.num_documents:,} documents, {store.num_sentences:,} sentences,"
                f" {store.num_tokens:,} tokens, unigram entropy {entropy(counts):.2f} nats"
            )
        batches = PretrainingBatches(source, self.config.batching, seed, share)
        shapes = ", ".join(f"{rows}x{length}" for rows, length in batches.shapes)
        reporter.note(f"batches of a process (sequences x tokens): {shapes}")
        content = fingerprint_of_store(opened.manifest)
        return Feed(batches.tasks, batches.micro_batches, config.data.num_data_workers, counts, content)

    def open_evaluation(self, config: RunConfig, communicator: Communicator) -> EvaluationFeed | None:
        """This rank's part of --data_eval; None without it."""
        if not self.evaluation.kind:
            return None
        masking = self.config.masking
        # So that figures compare, however a run masks. The limit on predictions is for training alone.
        share, most = self.config.eval_masked_lm_prob, self.max_seq_length
        judged = replace(masking, masked_lm_prob=share, max_predictions_per_seq=most)
        inputs = replace(self, config=replace(self.config, masking=judged))
        opened = open_source(inputs, self.evaluation, communicator)
        source, store = opened.source, opened.tokens
        rank, size, rows = communicator.rank, communicator.size, config.batch.batch_size_eval
        return EvaluationFeed(
            lambda: evaluation_batches(source, rows, rank, size),
            controls=lambda: control_batches(source, rows, rank, size),
            token_counts=token_counts(store) if store is not None and rank == 0 else None,
            content=fingerprint_of_store(opened.manifest),
        )


def check_parts(configs: Iterable[RunConfig]) -> list[Part]:
    """The stages of a run, in order, or the run itself, each with its inputs checked.

    Raises:
        InputError: as `check_inputs`; or stages that do not fit together.
    """
    checked = [(config, check_inputs(config)) for config in configs]
    if len(checked) == 2:
        (begun, first), (config, second) = checked
        for flag, data in (("data", second.train), ("data_eval", second.evaluation)):
            if data.kind == INSTANCES and not config.options[f"{flag}_2"]:
                raise InputError(
                    f"--stages both: --{flag} names files with masks, which are made for one length; name "
                    f"stage 2's with --{flag}_2 (text and token stores serve both stages)"
                )
        words = [
            (inputs.vocab_size, getattr(inputs.vocabulary, "sha256", None)) for inputs in (first, second)
        ]
        if words[0] != words[1]:
            raise InputError(
                "--data and --data_2 have different vocabularies; both stages train one model, with one "
                "vocabulary"
            )
        short, long = first.max_seq_length, second.max_seq_length
        if long < short:
            raise InputError(
                f"--max_seq_length: stage 1 has sequences of {short} tokens and stage 2 of {long}, but the "
                "second stage is there to learn longer positions; exchange them, or train the shorter ones "
                "as a run of its own with --init_from"
            )
        if long == short and not isinstance(begun.given["max_seq_length"], Pair):  # a pair is meant so
            said = f"both stages have sequences of {short} tokens; the paper's have 128, then 512 "
            checked[0] = (begun, replace(first, messages=(f"{said}(--max_seq_length 128,512)",)))
    return [Part(config, inputs) for config, inputs in checked]


def check_inputs(config: RunConfig) -> Inputs:
    """Opens what the options name. All of the data is checked later, while it is tokenized or converted.

    Raises:
        InputError: a file that is missing, empty or of the wrong form; a checkpoint of another model; a new
            run in a directory that already holds one; parameters to begin with that do not fit.
    """
    data = config.data
    train = named_data(data.data, "--data", data.raw)
    evaluation = named_data(data.data_eval, "--data_eval", data.raw and not data.eval_use_npz)
    vocabulary = common_vocabulary(data.tokenizer, train, evaluation)
    reads_text = TEXT in (train.kind, evaluation.kind)
    vocab_size = _embedding_rows(config, vocabulary, reads_text)
    if data.dummy_data_len:  # of --data only the names count
        train = DataFiles(NOTHING)
    max_seq_length = _check_data(config, train, evaluation)
    start = Start()
    stage = config.start.stage
    if stage is None or stage == STAGES[str(config.start.stages)][0]:  # the run begins with it
        wanted = Wanted(config.model.bert, vocab_size, vocabulary, config.trains)
        start = check_start(config, wanted, lambda: find_initial(config.start, wanted))
        if launched_rank(os.environ) == 0:
            check_room(config.checkpoint.ckpt_dir, vocabulary, data.tokenizer)
    filled = replace(
        data,
        cache_dir=data.cache_dir or os.path.join(config.checkpoint.ckpt_dir, "tokens"),
        masking=replace(data.masking, max_seq_length=max_seq_length),
    )
    return Inputs(
        vocabulary=vocabulary,
        vocab_size=vocab_size,
        max_seq_length=max_seq_length,
        start=start,
        about=About(
            epochs=config.optimization.num_epochs,
            data_options=DATA_OPTIONS,
            evaluation_options=("data_eval",) if evaluation.kind else (),
        ),
        train=train,
        evaluation=evaluation,
        config=filled,
    )


def _embedding_rows(run: RunConfig, vocabulary: Vocabulary | None, reads_text: bool) -> int:
    """Rows of the model's word embedding: as many as the vocabulary has tokens, or a few more.

    Raises InputError where --config_file has a number that is neither.
    """
    wanted, name = run.model.vocab_size, run.model.dataset_name
    tokens = len(vocabulary) if vocabulary else PUBLISHED_VOCABULARIES[name]
    if wanted is None:
        return tokens
    if vocabulary is None and not reads_text:  # then --dataset_name is no more than a default
        return wanted
    if not tokens <= wanted < tokens + MOST_PADDING:
        flag = f"{run.data.tokenizer.flag} has" if vocabulary else f"--dataset_name {name} has"
        raise InputError(
            f"--config_file {run.model.source}: vocab_size is {wanted}, but {flag} {tokens} tokens; name "
            f"the model's vocabulary (vocab_size may be greater by padding, fewer than {MOST_PADDING} rows)"
        )
    return wanted


def _check_data(run: RunConfig, train: DataFiles, evaluation: DataFiles) -> int:
    """The run's sequence length: of random tokens, as given, of the widest file, or the model's, at most 512
    and in stage 1 at most 128.

    Raises InputError for files of another form, files that break a limit, and options that do nothing.
    """
    config, masking = run.data, run.data.masking
    widths = []
    # Beside text, or random tokens, the options for masks are theirs.
    only_masked = {train.kind, evaluation.kind} - {NOTHING} == {INSTANCES} and not config.dummy_data_len
    for data in (train, evaluation):
        if data.kind == INSTANCES:
            predictions = masking.max_predictions_per_seq if only_masked or data is train else None
            widths.append(check_instances(data.paths, masking.max_seq_length, predictions))
        elif data.kind == TEXT:
            check_text(data.paths)
    if evaluation.kind == INSTANCES and config.eval_masked_lm_prob != DataConfig().eval_masked_lm_prob:
        raise InputError(
            "--eval_masked_lm_prob: --data_eval names files with masks, which hold theirs already"
        )
    default = MaskingConfig()
    for flag in ("whole_word_mask", "masked_lm_prob", "short_seq_prob", "single_sentences"):
        if only_masked and getattr(masking, flag) != getattr(default, flag):
            raise InputError(f"--{flag}: files with masks hold theirs already; it needs text or a store")
    # What is not padded may just miss the length that it was made for: 126 tokens mean 128.
    positions, stage = run.model.bert.positions, run.start.stage
    usual = STAGE_LENGTHS[stage - 1] if stage else MAX_POSITIONS
    longest = -(-max(widths, default=min(positions, usual)) // 8) * 8
    for flag, length in (
        ("--dummy_data_len", config.dummy_data_len),
        ("--max_seq_length", masking.max_seq_length),
        ("--data: sequences of", max(widths, default=0)),
    ):
        if length and length > positions:
            raise InputError(
                f"{flag} {length}: --config_file {run.model.source} has max_position_embeddings "
                f"{positions}; take shorter sequences or another model"
            )
    return config.dummy_data_len or masking.max_seq_length or min(longest, positions)


def open_source(inputs: Inputs, data: DataFiles, communicator: Communicator) -> OpenedData:
    """The samples of `data`, one of the two of `inputs`. Every rank calls it.

    Text is tokenized, and files with masks are converted, into the cache by the first rank of each host, with
    all its cores; the others wait, then map the same files. Hosts that share the cache share the work.

    Raises:
        InputError: bad data, with the file and the line or record.
    """
    if communicator.local_rank != 0:
        communicator.barrier()
    cores = os.cpu_count() or 1
    tokens = len(inputs.vocabulary) if inputs.vocabulary else inputs.vocab_size
    opened = open_data(data, inputs.config, inputs.vocabulary, tokens, cores, Printed())
    if communicator.local_rank == 0:
        communicator.barrier()
    return opened
