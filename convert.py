#!/usr/bin/env python3
"""Convert a pretrained BERT between GluonNLP, Hugging Face and TensorFlow, and to ONNX.

python convert.py ckpt_dir converted                      our newest checkpoint, for Hugging Face
python convert.py bert-base-uncased bert_base --to gluonnlp
python convert.py uncased_L-12_H-768_A-12/bert_model.ckpt converted --to huggingface
python convert.py ckpt_dir graph --to onnx
"""

from __future__ import annotations

from base.errors import explain_missing

if __name__ == "__main__":
    explain_missing()  # a library that is not installed

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Sequence

import numpy as np

from base.command_line import OptionParser, code_of, path_name
from base.errors import InputError
from base.files import is_temporary, replacing_folder
from base.options import add_options, flag, option, options_in, taken
from base.progress import Printed
from bert.configuration import BertConfig
from bert.weights.exporting import FILES, FORMATS, converted, export, warnings_of
from bert.weights.names import MASKED_LM, NEXT_SENTENCE, part_of
from bert.weights.onnx_file import check_onnx
from bert.weights.tensors import Weights
from training.start.pretrained import (
    PretrainedConfig,
    add_pretrained_options,
    find_described,
    pretrained_config,
)

_SHOWN = 5  # names in the closing lines
_EPILOG = """INPUT is recognised by its content: a folder of this project's checkpoints (the newest complete
one, or FOLDER:STEP), a .params file of GluonNLP, a Hugging Face folder or its model.safetensors, a TensorFlow
checkpoint (PREFIX, with Google's or NVIDIA's names), a pytorch_model.bin or NVIDIA's ckpt_*.pt. Optimizer
states are left out. Rules of thumb: BERT-large takes a few seconds, and a quarter of its size in memory.
docs/conversion.md is the guide."""


@dataclass(frozen=True)
class ConvertConfig:
    """One command. None: not given."""

    input: str
    output: str
    described: PretrainedConfig
    to: str | None = option(
        "the format of OUTPUT (default: huggingface for weights of GluonNLP, gluonnlp for others)",
        choices=FORMATS,
    )
    overwrite: bool = flag("replace OUTPUT, a folder that convert.py has made, whole")
    encoder_only: bool = flag(
        "leave out both heads, which Hugging Face's BertModel would report as unexpected"
    )
    dtype: str | None = option(
        "convert the numbers (default: as they are)", choices=("float16", "float32", "float64")
    )
    json: bool = flag("print the summary as one line of JSON")


def parse(arguments: Sequence[str] | None) -> ConvertConfig:
    """The command line. Raises InputError, also for a configuration file that cannot be used."""
    parser = OptionParser(
        prog="convert.py", description=__doc__.splitlines()[0], epilog=_EPILOG, allow_abbrev=False
    )
    add, table = parser.add_argument, options_in(ConvertConfig)
    text = "weights: a file, a folder, FOLDER:STEP, FOLDER:best, or a TensorFlow prefix"
    add("input", type=path_name, metavar="INPUT", help=text)
    add("output", type=path_name, metavar="OUTPUT", help="the folder to make")
    add_options(add, table, "to overwrite")
    add_pretrained_options(add)
    add_options(add, table, "encoder_only dtype json")
    options = parser.parse_args(arguments)
    input, output = (path.rstrip(os.sep) or path for path in (options.input, options.output))
    described = pretrained_config(options)
    return taken(ConvertConfig, options, input=input, output=output, described=described)


def convert(config: ConvertConfig) -> dict[str, Any]:
    """Makes the output; returns what it is, for people and as JSON.

    Raises:
        InputError: an input that cannot be read whole, options that do not fit it, or an output that is
            there already.
        OSError: from writing; nothing is left of the output then.
    """
    started = time.monotonic()
    _check_output(config)
    weights = find_described(config.input, "INPUT", config.described)
    if config.encoder_only:
        heads = (MASKED_LM, NEXT_SENTENCE)
        kept = {name: each for name, each in weights.tensors.items() if part_of(name) not in heads}
        left_out = [name for name in weights.tensors if name not in kept]
        weights = replace(weights, tensors=kept, ignored=(*weights.ignored, *left_out))
    to = config.to or ("huggingface" if weights.format == "gluonnlp" else "gluonnlp")
    if to == "onnx":
        check_onnx()
        if config.dtype not in (None, "float32"):
            raise InputError(f"--to onnx computes in float32, not in {config.dtype}; leave --dtype out")
        config = replace(config, dtype="float32")
    progress, done = Printed(), 0
    total = sum(each.dtype.itemsize * int(np.prod(each.shape)) for each in weights.tensors.values())

    def passed(size: int) -> None:
        nonlocal done
        done = min(done + size, total)  # the decoder's weight is read twice for GluonNLP
        progress.update(done, {})

    prepared = converted(weights, config.dtype, passed)
    progress.begin(f"converting to {to}", total)
    try:
        with replacing_folder(config.output) as folder:
            export(prepared, folder, to)
    finally:
        progress.end()
    return _summary(config, prepared, to, time.monotonic() - started)


def _check_output(config: ConvertConfig) -> None:
    output, place = config.output, os.path.dirname(config.output) or "."
    if not os.path.isdir(place):
        raise InputError(f"OUTPUT {output}: the folder {place} does not exist; create it or name another one")
    if not os.path.lexists(output):
        return
    if not config.overwrite:
        raise InputError(
            f"OUTPUT {output} is there already; name another one, or replace it with --overwrite"
        )
    if not os.path.isdir(output) or os.path.islink(output):
        raise InputError(f"OUTPUT {output} is no folder, which alone --overwrite replaces; name another one")
    others = sorted(name for name in os.listdir(output) if name not in FILES and not is_temporary(name))
    if others:
        raise InputError(
            f"OUTPUT {output} holds {others[0]}, which convert.py does not write and --overwrite would "
            "delete; name another folder"
        )
    inside = os.path.join(os.path.realpath(output), "")
    if (os.path.realpath(config.input) + os.sep).startswith(inside):
        raise InputError(f"OUTPUT {output} holds INPUT {config.input}; name another folder")


def _summary(config: ConvertConfig, weights: Weights, to: str, seconds: float) -> dict[str, Any]:
    folder = config.output
    return {
        "input": weights.source,
        "output": folder,
        "from": weights.format,
        "to": to,
        "model": weights.config.name,
        "config": asdict(weights.config),
        "vocab_size": weights.vocab_size,
        "tokens": None if weights.vocabulary is None else len(weights.vocabulary),
        "cased": weights.cased,
        "dtypes": sorted({str(each.dtype) for each in weights.tensors.values()}),
        "tensors": len(weights.tensors),
        "parameters": sum(int(np.prod(each.shape)) for each in weights.tensors.values()),
        "missing": list(weights.missing),
        "ignored": list(weights.ignored),
        "notes": list(weights.notes),
        "warnings": warnings_of(weights, to),
        "files": sorted(os.listdir(folder)),
        "bytes": sum(entry.stat().st_size for entry in os.scandir(folder)),
        "seconds": round(seconds, 3),
    }


def _show(summary: dict[str, Any]) -> None:
    for line in summary["warnings"]:
        print(f"warning: {line}", file=sys.stderr)
    for line in summary["notes"]:
        print(f"note: {line}")
    words = "no vocabulary" if summary["tokens"] is None else f"{summary['tokens']:,} tokens"
    if summary["tokens"] is not None and summary["tokens"] < summary["vocab_size"]:
        words += f" and {summary['vocab_size'] - summary['tokens']} rows of padding"
    print(
        f"{summary['output']}: {summary['model']}, {BertConfig(**summary['config']).network}, {words}, from "
        f"{summary['from']} to {summary['to']}; {summary['parameters'] / 1e6:,.1f} M parameters in "
        f"{summary['tensors']} tensors of {', '.join(summary['dtypes'])}, {summary['bytes']:,} bytes, "
        f"{summary['seconds']:.1f} s"
    )
    if summary["missing"]:
        print(f"missing in the input, and so in the output: {', '.join(summary['missing'])}")
    names = [name if name.isprintable() else ascii(name) for name in summary["ignored"]]
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        print(f"left out: {', '.join(names[:_SHOWN])}{more}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    try:
        config = parse(arguments)
        summary = convert(config)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        print(
            f"error: cannot write OUTPUT{where}: {error.strerror or error}; nothing is left of it",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    if config.json:
        print(json.dumps(summary))
    else:
        _show(summary)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no half-made folder stays behind
    sys.exit(code_of(main))
