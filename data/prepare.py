"""Prepare data for pretraining: text to a token store, or anything to files of masked instances.

python -m data.prepare --input 'corpus/*.txt' --output store/ --vocab vocab.txt
python -m data.prepare --input store/ --output shards/ --format hdf5 --max_seq_length 128 --dupe_factor 5
python -m data.prepare --input 'old/*.npz' --output shards/ --format tfrecord --vocab vocab.txt
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import sys
import time
from dataclasses import dataclass, replace
from typing import Any, Mapping, Sequence

from base.command_line import OptionParser, code_of, num_processes, path_name, path_names
from base.errors import InputError
from base.options import add_options, options_in, taken
from base.progress import Printed
from data.export import STORE, CopiesConfig, FileConfig, Rows, check_output, export, text_rows
from data.opening import (
    INSTANCES,
    TEXT,
    TOKEN_STORE,
    check_instances,
    common_vocabulary,
    load_vocabulary,
    named_data,
    tokenizer_settings,
)
from data.options import TABLE, DataConfig
from data.store.build import build_columns, check_free, is_built
from data.store.instances import instance_store_plan
from data.store.manifest import MANIFEST, read_json
from data.store.tokens import cached_store, token_store_plan
from data.tokenizing.vocab import Vocabulary

_MESSAGES_SHOWN = 5
_LENGTH = 128  # of instances made of text
_FILES = options_in(CopiesConfig, FileConfig)
_DESCRIPTION = """Prepare data for pretraining: tokenize text once into a token store, or write files of
masked instances for this and other projects (--format)."""
_EPILOG = """A build that was stopped or whose disk was full goes on where it stopped when the same command is
given again. Rules of thumb: one core tokenizes 4 million tokens a second of
text with a sentence a line, 1.5 million of text that has to be split into sentences: a GB of English in one
to two minutes; a token store takes 2.3 bytes a token (4.3 for vocabularies above 65,536), half the size
of the text, and twice that while it is made; memory is about 100 MB a worker, whatever the size of the text.
Files of instances take as much again for every copy (--dupe_factor), and three times that while they are
made."""


@dataclass(frozen=True)
class PrepareConfig:
    """One command: the data, and what is made of it. `files` is None for a token store."""

    input: str
    output: str  # an absolute path
    data: DataConfig
    copies: CopiesConfig
    files: FileConfig | None
    num_workers: int


def parse(arguments: Sequence[str] | None) -> PrepareConfig:
    """The command line, checked as far as it can be without reading files. Raises InputError."""
    options = _parser().parse_args(arguments)
    data = taken(DataConfig, options)
    data.masking.check()
    files, length = taken(FileConfig, options), data.masking.max_seq_length or _LENGTH
    return PrepareConfig(
        options.input,
        os.path.abspath(os.path.expanduser(options.output)),
        data,
        taken(CopiesConfig, options, masking=replace(data.masking, max_seq_length=length)),
        None if files.format == STORE else files,
        options.num_workers,
    )


def prepare(config: PrepareConfig) -> None:
    """Makes the output, and prints its figures on one line. Raises InputError."""
    data, output, files = named_data(config.input, "--input", raw=None), config.output, config.files
    if data.kind != TOKEN_STORE:
        _check_apart(config.input, data.paths, output)
    if files is None:
        if data.kind == TOKEN_STORE:
            raise InputError(
                f"--input {data.paths[0]} is a token store already; give --format to make files of it"
            )
        if data.kind == INSTANCES:
            raise InputError(
                f"--input: {data.paths[0]} holds masked instances, which no token store can be made of; give "
                "--format to convert it, or train on it as it is"
            )
        _make_store(config, data.paths)
        return
    made_on_the_way, text, progress = f"{output}.tokens", config.data.text, Printed()
    check_output(output, files, {} if data.kind == INSTANCES else {"masks": config.copies.identity})
    if data.kind == INSTANCES:
        masking = config.data.masking  # what is stored cannot be made shorter
        check_instances(data.paths, masking.max_seq_length, masking.max_predictions_per_seq)
        plan = instance_store_plan(
            data.paths, len(_vocabulary(config)), text.skip_bad_records, progress=progress
        )
        rows = Rows(plan)
    elif data.kind == TOKEN_STORE:
        common_vocabulary(config.data.tokenizer, data)
        rows = text_rows(data.paths, config.copies)
    else:
        there = os.listdir(made_on_the_way) if os.path.isdir(made_on_the_way) else []
        others = [name for name in there if not name.startswith(("tokens-", "hashes.json"))]
        if others:
            raise InputError(f"{made_on_the_way} holds {others[0]} and is removed at the end; move that away")
        words, directories = _vocabulary(config), []
        # One store, or for a tokenizer that samples one a copy
        samples = tokenizer_settings(config.data.tokenizer, words).samples
        for copy in range(config.copies.dupe_factor if samples else 1):
            settings = tokenizer_settings(config.data.tokenizer, words, copy)
            store = cached_store(data.paths, settings, made_on_the_way, config.num_workers, text, Printed())
            directories.append(store.directory)
            if copy == 0:
                _report_skipped(store.manifest)
        rows = text_rows(directories, config.copies)
    manifest = export(rows, output, files, config.num_workers, progress)
    if data.kind == TEXT:
        shutil.rmtree(made_on_the_way, ignore_errors=True)  # the same command beside this one may have
    counts, size = manifest["counts"], sum(file["size"] for file in manifest["files"])
    print(
        f"{output}: {len(manifest['files']):,} files, {size:,} bytes; {counts['instances']:,} "
        f"instances, {counts['tokens']:,} tokens, {counts['predictions']:,} predictions"
    )
    _report_skipped(manifest)


def _make_store(config: PrepareConfig, paths: Sequence[str]) -> None:
    progress, output, text = Printed(), config.output, config.data.text
    settings = tokenizer_settings(config.data.tokenizer, _vocabulary(config))
    check_free(output, {})  # before the checksums of a large text
    plan = token_store_plan(paths, settings, text, progress=progress)
    if is_built(output, plan.identity):
        print(f"{output} is there already, of the same text and settings: nothing to do")
        return
    started = time.monotonic()
    build_columns(output, plan, config.num_workers, progress)
    seconds = time.monotonic() - started
    manifest = read_json(os.path.join(output, MANIFEST))
    counts = manifest["counts"]
    size = sum(entry.stat().st_size for entry in os.scandir(output))
    print(
        f"wrote {output}: {counts['documents']:,} documents, {counts['sentences']:,} sentences, "
        f"{counts['tokens']:,} tokens; {size:,} bytes, {size / counts['tokens']:.2f} a token; "
        f"{seconds:.1f} s, {counts['tokens'] / seconds / 1e6:.2f} M tokens/s"
    )
    _report_skipped(manifest)


def _vocabulary(config: PrepareConfig) -> Vocabulary:
    """The vocabulary of --vocab or --sentencepiece. Raises InputError if neither is given, or bad."""
    vocabulary = load_vocabulary(config.data.tokenizer)
    if vocabulary is None:
        raise InputError(
            "give --vocab (WordPiece; data.train_vocab makes one from a text) or --sentencepiece for the "
            "tokens"
        )
    return vocabulary


def _check_apart(patterns: str, paths: Sequence[str], output: str) -> None:
    """Raises InputError where the output would become part of the input when the command is given again."""

    def is_below(path: str, folder: str) -> bool:
        path, folder = os.path.realpath(path), os.path.realpath(folder)
        return os.path.commonpath([path, folder]) == folder

    named = [os.path.expanduser(piece.strip()) for piece in patterns.split(",")]
    inside = [name for name in named if os.path.isdir(name) and is_below(output, name)]
    inside += [name for name in named if fnmatch.fnmatch(output, os.path.abspath(name))]
    inside += [path for path in paths if is_below(path, output)]
    if inside:
        raise InputError(f"--output {output} and --input {inside[0]}: one lies in the other; keep them apart")


def _report_skipped(manifest: Mapping[str, Any]) -> None:
    skipped = manifest["counts"].get("skipped")
    if skipped:
        print(f"skipped {skipped:,} bad records:", file=sys.stderr)
        for message in manifest["messages"][:_MESSAGES_SHOWN]:
            print(f"  {message}", file=sys.stderr)


def _parser() -> OptionParser:
    parser = OptionParser(
        prog="python -m data.prepare", description=_DESCRIPTION, epilog=_EPILOG, allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--input",
        type=path_names,
        required=True,
        help="text: files, folders and globs, separated by commas; with --format also a token store, or "
        "files of instances (npz, HDF5, TFRecord, OFRecord)",
    )
    add("--output", type=path_name, required=True, help="the directory to make")
    add_options(add, TABLE, "vocab sentencepiece")
    add(
        "--num_workers",
        type=num_processes,
        default=len(os.sched_getaffinity(0)),
        help="processes; the result does not depend on it (default: the cores, here %(default)s)",
    )
    add_options(add, TABLE, "skip_bad_records")

    add = parser.add_argument_group("text").add_argument
    nbest = {"help": "SentencePiece candidates to sample from, -1 all (default: 0)"}
    names = "cased text_format split_sentences sp_nbest sp_alpha sp_seed"
    add_options(add, TABLE, names, {"sp_nbest": nbest})

    add = parser.add_argument_group("files of instances (--format other than store)").add_argument
    add_options(add, _FILES, "format")
    changes: dict[str, dict[str, Any]] = {
        "max_seq_length": {"help": f"tokens of an instance (default: {_LENGTH})"},
        "max_predictions_per_seq": {
            "help": "masked tokens of an instance (default: 20 at 128 tokens, 80 at 512, else 15%% rounded "
            "up)"
        },
    }
    names = "max_seq_length max_predictions_per_seq short_seq_prob masked_lm_prob whole_word_mask"
    add_options(add, TABLE, names, changes)
    add_options(add, _FILES, "dupe_factor seed gzip instances_per_file")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    try:
        prepare(parse(arguments))
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; give the same command again, and it goes on where it stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(code_of(main))
