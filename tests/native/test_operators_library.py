"""The fused operators as the linker made them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import run_command

KERNELS = sorted((Path(sys.prefix) / "operators").glob("*_kernels.*.o"))


@pytest.mark.parametrize("isa", ["avx2", "avx512", "avx512_bf16"])
def test_kernels_bring_no_code_that_the_linker_could_share_between_instruction_sets(isa: str) -> None:
    """A library function that is compiled into several files exists once in the end, perhaps with
    instructions that an older processor does not have."""
    objects = [path for path in KERNELS if f".{isa}." in path.name]
    assert objects, "make setup leaves the objects in .venv/operators"
    for path in objects:
        listed = subprocess.run(["nm", "-C", str(path)], stdout=subprocess.PIPE, check=True, text=True).stdout
        shared = [line for line in listed.splitlines() if " W " in line or " u " in line]
        assert [line for line in shared if f"operators::{isa}::" not in line] == [], path.name


@pytest.mark.parametrize(
    "variables, said",
    [
        ({"BERT_OPERATORS_ISA": "sse9"}, "BERT_OPERATORS_ISA=sse9"),
        ({"BERT_OPERATORS_ISA": "avx2", "BERT_OPERATORS_BF16": "native"}, "BF16=native needs AVX-512"),
    ],
)
def test_what_the_processor_has_not_or_nobody_knows_is_refused(variables: dict[str, str], said: str) -> None:
    code = "import mxnet as mx; from bert.operators import load_operators; load_operators();"
    code += "print(mx.nd.bert_pack(mx.nd.ones((2, 2)), num_weights=1, dtype='bfloat16'))"
    result = run_command([sys.executable, "-c", code], env=variables)
    assert result.returncode != 0 and said in result.stderr, result.describe()
