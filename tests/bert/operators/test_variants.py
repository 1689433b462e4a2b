"""The tests of the fused operators again, in processes of their own: with each instruction set, with each way
in which matrix products multiply bfloat16, and with three threads and with one.

A process costs seconds before its first test. Each therefore runs all files that its variables can change.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.bert.operators.checking import IS_VARIANT
from tests.processes import run_command

HERE = Path(__file__).parent
EVERYTHING = sorted(path.stem[len("test_") :] for path in HERE.glob("test_*.py") if path != Path(__file__))
PRODUCTS = ["attention", "decode_loss", "dense", "feed_forward", "packed", "packed_update", "self_attention"]
PRODUCTS += ["muon", "split", "squares", "recompute", "words"]
CPU = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
# Two functions stand in for the instructions that multiply bfloat16 (tile_words.h), and products see both.
# Where the processor has the instructions, the rest has run with them.
EMULATED = ["dense", "split"] if "avx512_bf16" in CPU else PRODUCTS


class Variant(NamedTuple):
    """`needs`: the flag of a processor that can run it. `files`: what stands between test_ and .py."""

    environment: dict[str, str]
    needs: str
    files: list[str]


VARIANTS = {
    "baseline": Variant({"BERT_OPERATORS_ISA": "baseline", "OMP_NUM_THREADS": "1"}, "", EVERYTHING),
    "avx2": Variant({"BERT_OPERATORS_ISA": "avx2", "OMP_NUM_THREADS": "3"}, "avx2", EVERYTHING),
    "avx512": Variant({"BERT_OPERATORS_ISA": "avx512", "OMP_NUM_THREADS": "3"}, "avx512bw", EVERYTHING),
    "avx512, tiles emulated": Variant(
        {"BERT_OPERATORS_ISA": "avx512", "BERT_OPERATORS_BF16": "native"}, "avx512bw", EMULATED
    ),
    # Without AMX it is what all tests run with, where the processor has it.
    "avx512_bf16": Variant({"BERT_OPERATORS_ISA": "avx512_bf16"}, "amx_bf16", PRODUCTS),
}


@pytest.mark.skipif(IS_VARIANT, reason="is a variant itself")
@pytest.mark.parametrize("name", VARIANTS)
def test_variant(name):
    variant = VARIANTS[name]
    if variant.needs and variant.needs not in CPU:
        pytest.skip(f"this processor has no {variant.needs}")
    files = [str(HERE / f"test_{file}.py") for file in variant.files]
    # On a machine that others share all of these took more than ten minutes.
    done = run_command(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *files],
        timeout=1700,
        env={"OPENBLAS_NUM_THREADS": "1", **variant.environment, "OPERATORS_VARIANT": name},
    )
    assert done.returncode == 0, done.describe(100_000)
    passed = {Path(line.split("::")[0]).name for line in done.stdout.splitlines() if " PASSED" in line}
    assert passed == {f"test_{file}.py" for file in variant.files}  # none was left out as a whole
