"""Prepare data for pretraining: text to a token store, or anything to files of masked instances.

python -m data.prepare --input 'corpus/*.txt' --output store/ --vocab vocab.txt
python -m data.prepare --input store/ --output shards/ --format hdf5 --max_seq_length 128 --dupe_factor 5
python -m data.prepare --input 'old/*.npz' --output shards/ --format tfrecord --vocab vocab.txt
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from typing import Any, Mapping, Sequence

from base.errors import InputError
from base.progress import Printed
from data.formats.export import Exported, export_instances, export_text
from data.formats.find import expand_instances
from data.formats.identify import identify
from data.prepare_options import (
    STORE,
    file_settings,
    mask_settings,
    parse,
    text_settings,
    tokenizer_settings,
    vocabulary,
)
from data.store.build import is_built
from data.store.cache import describe_sources
from data.store.journal import MANIFEST, read_json
from data.store.tokens import build_store, cached_store, is_store, store_identity

_MESSAGES_SHOWN = 5
_TEXT, _INSTANCES = "text", "instances"


def prepare(options: argparse.Namespace) -> None:
    """What the options say, with its result in a line on standard output. Raises InputError."""
    folder = os.path.expanduser(options.input.strip())
    output = os.path.abspath(os.path.expanduser(options.output))
    if is_store(folder):
        if options.format == STORE:
            raise InputError(f"--input {folder} is a token store already; give --format to make files of it")
        _report_files(
            output,
            export_text(
                [folder],
                output,
                mask_settings(options),
                file_settings(options),
                options.num_workers,
                Printed(),
            ),
        )
        return
    paths = expand_instances(options.input, "--input")
    _check_apart(options.input, paths, output)
    kind = _kind_of(paths)
    if options.format == STORE:
        if kind == _INSTANCES:
            raise InputError(
                f"--input: {paths[0]} holds masked instances, which no token store can be made of; give "
                "--format to convert it, or train on it as it is"
            )
        _make_store(options, paths, output)
    elif kind == _INSTANCES:
        size = len(vocabulary(options))
        settings = file_settings(options)
        skip = options.skip_bad_records
        exported = export_instances(paths, size, output, settings, skip, options.num_workers, Printed())
        _report_files(output, exported)
    else:
        _report_files(output, _text_to_files(options, paths, output))


def _make_store(options: argparse.Namespace, paths: Sequence[str], output: str) -> None:
    progress = Printed()
    settings, text = tokenizer_settings(options), text_settings(options)
    sources = describe_sources(paths, progress=progress)
    if is_built(output, store_identity(sources, settings, text)):
        print(f"{output} is there already, of the same text and settings: nothing to do")
        return
    started = time.monotonic()
    build_store(paths, settings, output, options.num_workers, text, progress, sources)
    seconds = time.monotonic() - started
    manifest = read_json(os.path.join(output, MANIFEST))
    counts = manifest["counts"]
    size = sum(entry.stat().st_size for entry in os.scandir(output))
    print(
        f"wrote {output}: {counts['documents']:,} documents, {counts['sentences']:,} sentences, "
        f"{counts['tokens']:,} tokens; {size:,} bytes, {size / counts['tokens']:.2f} a token; "
        f"{seconds:.1f} s, {counts['tokens'] / seconds / 1e6:.2f} M tokens/s"
    )
    _report_skipped(counts, manifest["messages"])


def _text_to_files(options: argparse.Namespace, paths: Sequence[str], output: str) -> Exported:
    """Tokenize beside the output, export, and remove the token stores."""
    progress = Printed()
    stores = f"{output}.tokens"
    directories = []
    copies = options.dupe_factor if tokenizer_settings(options).samples else 1
    for copy in range(copies):
        settings, text = tokenizer_settings(options, copy), text_settings(options)
        store = cached_store(paths, settings, stores, options.num_workers, text, progress)
        directories.append(store.directory)
        if copy == 0:
            _report_skipped(store.manifest["counts"], store.manifest["messages"])
    masks, files = mask_settings(options), file_settings(options)
    exported = export_text(directories, output, masks, files, options.num_workers, progress)
    shutil.rmtree(stores)
    return exported


def _kind_of(paths: Sequence[str]) -> str:
    """Whether the files are text or instances, which must not be mixed."""
    instances = [path for path in paths if _holds_instances(path)]
    if not instances:
        return _TEXT
    if len(instances) < len(paths):
        other = next(path for path in paths if path not in set(instances))
        raise InputError(
            f"--input: {instances[0]} holds instances and {other} does not; prepare them separately"
        )
    return _INSTANCES


def _holds_instances(path: str) -> bool:
    try:
        identify(path)
    except InputError:  # text; or something else, which the reader of text says
        return False
    return True


def _check_apart(patterns: str, paths: Sequence[str], output: str) -> None:
    """The output must not become part of the input when the command is given again."""
    folders = [os.path.expanduser(piece.strip()) for piece in patterns.split(",")]
    inside = [folder for folder in folders if os.path.isdir(folder) and _is_below(output, folder)]
    inside += [path for path in paths if _is_below(path, output)]
    if inside:
        raise InputError(f"--output {output} and --input {inside[0]}: one lies in the other; keep them apart")


def _is_below(path: str, folder: str) -> bool:
    path, folder = os.path.realpath(path), os.path.realpath(folder)
    return os.path.commonpath([path, folder]) == folder


def _report_files(output: str, exported: Exported) -> None:
    counts = exported.counts
    print(
        f"{output}: {exported.num_files:,} files, {exported.num_bytes:,} bytes; {counts['instances']:,} "
        f"instances, {counts['tokens']:,} tokens, {counts['predictions']:,} predictions"
    )
    _report_skipped(counts, exported.messages)


def _report_skipped(counts: Mapping[str, Any], messages: Sequence[str]) -> None:
    if counts.get("skipped"):
        print(f"skipped {counts['skipped']:,} bad records:", file=sys.stderr)
        for message in messages[:_MESSAGES_SHOWN]:
            print(f"  {message}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    try:
        prepare(parse(arguments))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; give the same command again, and it goes on where it stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
