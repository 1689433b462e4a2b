"""Damaged and hostile models, in a process of their own: some would take the process along."""

from __future__ import annotations

import random
import sys

import pytest

from base.errors import InputError
from data.tokenizing.tokenizer import check_model, load_processor
from tests.data.formats.samples import field
from tests.processes import run_command

pytest.importorskip("sentencepiece")

# Loads each damaged copy of a model, and uses what was accepted.
WORKER = """
import random, sys
from base.errors import InputError
from data.tokenizing.tokenizer import TokenizerSettings, load_sentencepiece
from data.tokenizing.tokenizer import lists_of
model, copy, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
good = open(model, "rb").read()
table = good.rfind(b"nmt_nfkc") + 20  # most of a small model is the table of its normalization
text = ["".join(map(chr, range(start, start + 64))) for start in range(33, 0xD000, 256)]
outcomes = {"refused": 0, "used": 0}
for seed in range(count):
    generator = random.Random(seed)
    damaged = bytearray(good)
    kind = seed % 5
    if kind == 0:
        del damaged[generator.randrange(len(damaged)) :]
    elif kind == 1:
        for _ in range(generator.choice((1, 4, 100))):
            damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
    elif kind == 2:
        for _ in range(generator.choice((1, 3, 1000))):
            damaged[generator.randrange(table, len(damaged) - 300)] = generator.randrange(256)
    elif kind == 3:
        start = generator.randrange(len(damaged))
        del damaged[start : start + generator.choice((1, 30))]
    else:
        damaged = bytearray(generator.randrange(256) for _ in range(generator.choice((1, 30, 3000))))
    with open(copy, "wb") as handle:
        handle.write(damaged)
    print(seed, flush=True)
    try:
        vocab = load_sentencepiece(copy)
        assert len(lists_of(*TokenizerSettings(vocab, copy).build().encode(text))) == len(text)
        TokenizerSettings(vocab, copy, nbest=-1, alpha=0.1).build().encode(text[:40])
        outcomes["used"] += 1
    except InputError as error:
        assert copy in str(error) and "\\n" not in str(error), error
        outcomes["refused"] += 1
print(outcomes["refused"], outcomes["used"])
"""


@pytest.fixture(scope="module", params=["nmt_nfkc", "nfkc_cf", "identity"])
def model(request, tmp_path_factory):
    import sentencepiece

    prefix = str(tmp_path_factory.mktemp("model") / "m")
    generator = random.Random(1)
    lines = [" ".join("".join(generator.choices("abcdef", k=4)) for _ in range(8)) for _ in range(300)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=prefix,
        vocab_size=120,
        normalization_rule_name=request.param,
        user_defined_symbols=["[CLS]", "[SEP]", "[MASK]"],
        pad_id=3,
        minloglevel=2,
    )
    return prefix + ".model"


@pytest.mark.parametrize("model", ["nmt_nfkc"], indirect=True)
def test_damaged_models_are_refused_and_never_end_the_process(model, tmp_path):
    command = [sys.executable, "-c", WORKER, model, str(tmp_path / "damaged.model"), "150"]
    result = run_command(command).check()
    refused, used = map(int, result.stdout.splitlines()[-1].split())
    assert refused > 60 and used > 5 and refused + used == 150


def test_a_table_that_leads_outside_is_refused_before_sentencepiece_sees_it(model):
    assert load_processor(model).get_piece_size() == 120, "the intact model"
    with open(model, "rb") as handle:
        content = handle.read()
    check_model(content, "good")
    outside = (0x3FFFFF << 10).to_bytes(4, "little")  # unit 0 with the largest offset
    for strings in (b"x\0", b"x", b""):
        with pytest.raises(InputError, match="bad.model is not a SentencePiece model"):
            check_model(content + normalizer(1024, outside * 256, strings), "bad.model")
    inside = bytes(1024)
    check_model(content + normalizer(1024, inside, b"x\0"), "good")
    sizes = ((1024, inside, b"x"), (1022, inside, b"\0"), (9000, inside, b"\0"), (0, b"", b"\0"))
    for size, units, strings in sizes:
        with pytest.raises(InputError, match="bad.model is not"):
            check_model(content + normalizer(size, units, strings), "bad.model")


def normalizer(size, units, strings):
    """A NormalizerSpec field of a ModelProto with this table; protobuf merges it with the first."""
    return field(3, field(2, size.to_bytes(4, "little") + units + strings))


@pytest.mark.parametrize("content", [b"", b"\x0a", b"\x0a\xff", b"\x0b", b"\xff" * 11, b"\x0d\x01"])
def test_what_is_no_protobuf_message_is_refused(content):
    with pytest.raises(InputError, match="m.model is not a SentencePiece model"):
        check_model(content, "m.model")
