"""Ranks that are about to do different things end with one line that names the difference, before work; a bit
that flips in one rank's memory is noticed at the next checkpoint, which is not saved."""

from __future__ import annotations

import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from base.errors import InputError
from comm.local import LocalCommunicator
from data.opening import DataFiles, fingerprint
from hosts.mpirun import AS_ROOT
from tests.faults import disagree
from tests.faults.jobs import SCRIPTS, patched
from tests.processes import LIMIT, ROOT, run_command, run_ranks
from tests.training.small_runs import command, parts_of
from training.agreement import agree, describe, majority
from training.checkpoint import list_steps
from training.model import Computing


class Together:
    """Ranks as threads of this process, exchanging what `agree` needs."""

    def __init__(self, size: int):
        self.size = size
        self._barrier = threading.Barrier(size, timeout=LIMIT)
        self._values: list = [None] * size

    def run(self, call):
        """Calls it with each rank's communicator; returns what each returned or raised."""

        def guarded(rank):
            try:
                return call(_Rank(self, rank))
            except InputError as error:
                return error

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(guarded, range(self.size)))

    def exchanged(self, rank: int, value) -> list:
        """The value of each rank."""
        self._values[rank] = value
        self._barrier.wait()
        found = list(self._values)
        self._barrier.wait()
        return found


class _Rank(LocalCommunicator):
    def __init__(self, ranks: Together, rank: int):
        self._ranks, self.rank, self.size = ranks, rank, ranks.size

    def broadcast(self, arrays, root=0):
        sent = self._ranks.exchanged(self.rank, [array.asnumpy() for array in arrays])
        for array, value in zip(arrays, sent[root]):
            array[:] = value

    def all_agree(self, flags):
        return [all(votes) for votes in zip(*self._ranks.exchanged(self.rank, list(flags)))]


@pytest.fixture(scope="module")
def files(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    return disagree.make_files(folder, Path(corpus.held_out), Path(corpus.vocab))


def described(words) -> dict[str, str]:
    return describe(parts_of([str(word) for word in words]), 2)


def outcomes(*descriptions):
    return Together(len(descriptions)).run(lambda rank: agree(descriptions[rank.rank], rank))


NOT_OF_OPTIONS = ("code", "version", "a byte of the text")


def test_every_kind_of_disagreement_is_named(files, tmp_path):
    words = disagree.arguments(files, tmp_path)
    alike, said = described(words), {}
    assert {"the code of training/step.py", "the code of run_pretraining_hvd.py"} <= set(alike)
    assert {"the version of python", "the version of mxnet", "the version of numpy"} <= set(alike)
    kinds = disagree.kinds(files)
    assert len(kinds) >= 30
    for name, kind in kinds.items():
        if name in NOT_OF_OPTIONS:
            continue
        first, second = outcomes(alike, described([*words, *kind.words]))
        assert isinstance(first, InputError) and str(first) == str(second), name
        assert kind.named in str(first) and "rank 0 (" in str(first) and "rank 1 (" in str(first), name
        said[name] = str(first)
    assert "--lr is 0.001 on rank 0 (" in said["lr"] and "0.5 on rank 1 (" in said["lr"]
    assert "--seed is left out on rank 0 (" in said["seed"] and "7 on rank 1 (" in said["seed"]


def test_ranks_that_agree(files, tmp_path):
    """Paths, and what results do not depend on, may differ: here all that may does."""
    copies = tmp_path / "copies"
    copies.mkdir()
    for path in (files.text, files.vocabulary):
        shutil.copy(path, copies / f"copy-of-{path.name}")
    words = disagree.arguments(files, tmp_path / "one")
    text, vocab = (copies / f"copy-of-{path.name}" for path in (files.text, files.vocabulary))
    more = {"cache_dir": tmp_path, "num_data_workers": 4, "progress": "none", "profile": tmp_path / "trace"}
    other = disagree.arguments(files, tmp_path / "other", data=text, vocab=vocab, **more)
    assert outcomes(described(words), described([*other, "--verbose"])) == [None, None]


def test_several_ranks_differ_in_several_things():
    alike = {"--lr": "1", "--seed": "2"}
    others = [{**alike, "--lr": "3"}, alike, {**alike, "--seed": "4"}, {**alike, "--lr": "3", "code": "x"}]
    (message,) = set(map(str, outcomes(alike, *others)))
    assert "--lr is 1 on rank 0 (" in message and "3 on ranks 1, 4 (" in message
    assert "--seed is 2 on rank 0 (" in message and "4 on rank 3 (" in message
    assert "code is not there on rank 0" in message and "x on rank 4" in message


def test_many_ranks_and_many_differences_fit_into_a_line():
    alike = {f"--option_{number}": "1" for number in range(50)}
    found = outcomes(alike, *({name: str(rank) for name in alike} for rank in range(2, 24)))
    (message,) = set(map(str, found))
    assert "and 47 more" in message and "22 ranks differ from rank 0" in message and len(message) < 2000


def test_the_library_of_operators_is_described(tmp_path, monkeypatch):
    library = tmp_path / "library.so"
    library.write_bytes(b"one")
    monkeypatch.setattr("training.model.LIBRARY", str(library))
    import mxnet as mx

    one = Computing(mx.cpu(), "float32", "fused").description()
    library.write_bytes(b"two")
    other = Computing(mx.cpu(), "float32", "fused").description()
    assert one != other and outcomes(one, one) == [None, None]
    assert "--operators" in str(outcomes(one, other)[0])


def test_fingerprints_count_the_files(files, tmp_path):
    one, twice = (fingerprint(DataFiles("text", [str(files.text)] * count)) for count in (1, 2))
    assert "1 files" in one and one != twice
    with pytest.raises(InputError, match="cannot read"):
        fingerprint(DataFiles("text", [str(tmp_path / "nothing")]))


class TestRuns:
    def test_as_the_issue_has_it(self, files, tmp_path):
        """One mpirun with two command lines."""
        words = [str(ROOT / "run_pretraining_hvd.py"), *disagree.arguments(files, tmp_path)]
        each = ["-np", "1", sys.executable, *words]
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", *each, ":", *each, "--lr", "0.5"]
        result = run_command(command, env=AS_ROOT)
        assert result.returncode == 2 and "--lr is 0.001 on rank 0" in result.stderr, result.describe()
        assert not list(tmp_path.iterdir())

    def test_a_byte_of_the_text_with_byteps(self, files):
        """Too little for samples: found when the text has been tokenized."""
        one, other = (fingerprint(DataFiles("text", [str(path)])) for path in (files.text, files.other_byte))
        assert one == other
        outcome = disagree.attack("byteps", files, "a byte of the text")
        assert outcome.fault == "", outcome


# Flips a bit in the memory of one rank, after a step.
FLIP = """
import os
import training.step as step_module
from base.launchers import launched_rank
from comm.bits import memory_of
from bert.model import live_arrays
own = launched_rank(os.environ)
Step = step_module.TrainStep
call = Step.__call__

def flipping(self, step, *given, **named):
    result = call(self, step, *given, **named)
    if (step, own) == ({step}, {rank}):
        states = self._optimizer.state_arrays()
        weights = live_arrays(self._network.bert._collect_params_with_prefix())
        memory_of({{**weights, **states}}[{name!r}])[5] ^= 1 << 6
    return result

Step.__call__ = flipping
"""
WEIGHT, MOMENT = "encoder.transformer_cells.0.ffn.ffn_1.weight", "word_embed.0.weight.var"


@pytest.mark.parametrize(
    "launcher, ranks, flipped, name", [("mpirun", 2, 0, WEIGHT), ("byteps", 3, 2, MOMENT)]
)
def test_a_flipped_bit_ends_the_run_before_it_is_saved(tmp_path, launcher, ranks, flipped, name):
    given = "--num_steps 9 --ckpt_interval 3 --log_interval 1 --seed 3"
    words = command(tmp_path / "run", *given.split())
    code = patched(ROOT / SCRIPTS[launcher], FLIP.format(step=5, rank=flipped, name=name))
    result = run_ranks(code, ranks, launcher, args=words)
    assert result.returncode == 1, result.describe()
    (line, *_) = [each for each in result.stderr.splitlines() if "error: step 6: " in each]
    assert f"{name}) of rank {flipped if ranks == 3 else 1} (" in line
    if ranks == 3:
        assert "are not the other 2 ranks', and not saved" in line
    else:
        assert "are not rank 0's (" in line and "no majority says whose are right" in line
    assert list_steps(str(tmp_path / "run")) == [3]


@pytest.mark.parametrize(
    "digests, usual, odd",
    [
        ([7, 7], [0, 1], []),
        ([7, 8], [0], [1]),
        ([8, 7, 7], [1, 2], [0]),
        ([7, 7, 8, 9, 7], [0, 1, 4], [2, 3]),
        ([7, 8, 9], [0], [1, 2]),
        ([7, 7, 8, 8], [0, 1], [2, 3]),
    ],
)
def test_the_odd_ones(digests, usual, odd):
    assert majority(dict(enumerate(digests))) == (usual, odd)
