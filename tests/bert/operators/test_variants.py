"""The tests of the fused operators again, in processes of their own: with each instruction set, with each way
in which matrix products multiply bfloat16, and with three threads and with one.

A process costs seconds before its first test. Each therefore runs all files that its variables can change.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from bert.operators import load_operators
from tests.bert.operators.checking import IS_VARIANT

if not load_operators():
    pytest.skip("the operators are not built", allow_module_level=True)

HERE = Path(__file__).parent
EVERYTHING = ["attention", "decode_loss", "dense", "dropout", "embed", "feed_forward", "gather", "gelu"]
EVERYTHING += ["lamb", "bfloat16_moments", "norm", "packed", "packed_update", "self_attention", "split"]
EVERYTHING += ["squares", "words", "every_operator"]
PRODUCTS = ["attention", "decode_loss", "dense", "feed_forward", "packed", "packed_update", "self_attention"]
PRODUCTS += ["split", "squares", "words"]


class Variant(NamedTuple):
    """`needs`: the flag of a processor that can run it. `files`: what stands between test_ and .py."""

    environment: dict[str, str]
    needs: str
    files: list[str]


VARIANTS = {
    "baseline": Variant({"BERT_OPERATORS_ISA": "baseline", "OMP_NUM_THREADS": "3"}, "", EVERYTHING),
    "avx2": Variant({"BERT_OPERATORS_ISA": "avx2", "OMP_NUM_THREADS": "3"}, "avx2", EVERYTHING),
    "avx512": Variant({"BERT_OPERATORS_ISA": "avx512", "OMP_NUM_THREADS": "3"}, "avx512bw", EVERYTHING),
    "avx512, tiles emulated": Variant(
        {"BERT_OPERATORS_ISA": "avx512", "BERT_OPERATORS_BF16": "native"}, "avx512bw", PRODUCTS
    ),
    # Without AMX it is what all tests run with, where the processor has it.
    "avx512_bf16": Variant({"BERT_OPERATORS_ISA": "avx512_bf16"}, "amx_bf16", PRODUCTS),
    "rounded, one thread": Variant({"BERT_OPERATORS_BF16": "rounded", "OMP_NUM_THREADS": "1"}, "", PRODUCTS),
}


@pytest.mark.skipif(IS_VARIANT, reason="is a variant itself")
def test_every_file_is_run_again():
    assert {path.stem for path in HERE.glob("test_*.py")} == {
        *(f"test_{name}" for name in EVERYTHING),
        Path(__file__).stem,
    }


@pytest.mark.skipif(IS_VARIANT, reason="is a variant itself")
@pytest.mark.parametrize("name", VARIANTS)
def test_variant(name):
    variant = VARIANTS[name]
    if variant.needs and variant.needs not in Path("/proc/cpuinfo").read_text(encoding="utf-8").split():
        pytest.skip(f"this processor has no {variant.needs}")
    files = [str(HERE / f"test_{file}.py") for file in variant.files]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *files],
        env={**os.environ, **variant.environment, "OPERATORS_VARIANT": name},
        cwd=str(HERE.parents[2]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1700,  # on a machine that others share all of these took more than ten minutes
    )
    assert done.returncode == 0, done.stdout
    for file in variant.files:  # none was left out as a whole
        assert any(f"test_{file}.py::" in line and "PASSED" in line for line in done.stdout.splitlines()), (
            file
        )
