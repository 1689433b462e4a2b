"""The state after the last complete step, saved where a run fails; in one process, and in memory where the
disk is full; parts of a pipeline's stages that a failure has left, joined by the next start.
tests/faults/rescue.py kills parts of real runs."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from base import failures
from base.claims import Claim
from base.errors import InputError, NotFiniteError, TrainingError
from bert.model import network_parameters
from bert.weights.params_file import read_index
from comm.base import CommunicationError
from tests.faults.disks import can_mount, full, small_disk
from tests.training.small_runs import Meeting, command, train, trained
from tests.training.staged import arrays_of
from tests.training.test_checkpoint import FACTS
from tests.training.tiny import Waiting
from training.checkpoint import list_steps, newest_complete, read_manifest, save
from training.left_behind import ORDER, PARTS, bring_back, folder_of_part
from training.rescue import LOCK, Rescue

SHORT = ("--num_steps", "6", "--log_interval", "1", "--seed", "3")
SELDOM = (*SHORT, "--ckpt_interval", "1000")


def lose() -> None:
    raise CommunicationError("rank 1 has ended")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert trained(folder, *SHORT, "--ckpt_interval", "1") == 0
    return folder


def same(folder: Path, expected: Path, step: int) -> bool:
    return arrays_of(folder, step) == arrays_of(expected, step)


def test_no_more_is_lost_than_the_step_that_had_begun(tmp_path, whole):
    folder = tmp_path / "run"
    with pytest.raises(CommunicationError):
        trained(folder, *SELDOM, communicator=Meeting(4, lose))
    assert list_steps(str(folder)) == [3] and same(folder, whole, 3)
    assert read_manifest(str(folder), 3)["rescued"] is True
    assert trained(folder, *SELDOM, "--resume") == 0
    assert same(folder, whole, 6)
    assert "rescued" not in read_manifest(str(folder), 6)


def test_ranks_that_take_each_other_for_lost_save_one_after_the_other(tmp_path, whole):
    """As both sides of a network that is cut: the other one's claim stands while it writes the same step."""
    folder, others, early = tmp_path / "run", [], []

    def lose_while_the_other_saves() -> None:
        claim = Claim(str(folder / LOCK.format("")), lambda other: None)
        assert claim.attempt()
        others.append(threading.Thread(target=save_and_release, args=(claim,)))
        others[0].start()
        lose()

    def save_and_release(claim: Claim) -> None:
        time.sleep(0.5)  # any time below YIELDING
        early.extend(list_steps(str(folder)))
        for path in whole.glob("0000003.*"):
            os.utime(shutil.copy(path, folder), (1, 1))
        claim.release()

    with pytest.raises(CommunicationError):
        trained(folder, *SELDOM, communicator=Meeting(4, lose_while_the_other_saves))
    others[0].join()
    assert early == [] and list_steps(str(folder)) == [3]
    assert {path.stat().st_mtime for path in folder.glob("0000003.*")} == {1}, "written again"


def test_a_step_that_is_taken_once_more_is_saved_again(tmp_path, whole):
    folder = shutil.copytree(whole, tmp_path / "run")
    with pytest.raises(CommunicationError):
        trained(folder, *SELDOM, "--start_step", "2", "--lr", "0.02", communicator=Meeting(2, lose))
    assert read_manifest(str(folder), 3)["options"]["lr"] == 0.02 and not same(folder, whole, 3)


def test_nothing_is_saved_before_the_first_step(tmp_path):
    with pytest.raises(CommunicationError):
        trained(tmp_path / "run", *SELDOM, communicator=Meeting(1, lose))
    assert list_steps(str(tmp_path / "run")) == []


@pytest.mark.parametrize(
    "error", [NotFiniteError("not finite"), InputError("bad input"), KeyboardInterrupt()]
)
def test_what_is_no_accident_saves_nothing(tmp_path, error):
    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        trained(tmp_path / "run", *SELDOM, communicator=Meeting(4, fail))
    assert list_steps(str(tmp_path / "run")) == []


def test_an_update_is_not_saved_in_its_middle(tmp_path, whole, monkeypatch):
    """Another thread wants to save while a step changes the state: it waits, and has that step. The run takes
    no other one."""
    begin, threads, said = Rescue.begin, [], []

    def beginning(self: Rescue) -> None:
        for thread in threads:
            thread.join()
            lose()
        begin(self)
        if self._run.optimizer.t == 3:
            threads.append(threading.Thread(target=lambda: said.append(self.save(has_first=True))))
            threads[0].start()

    monkeypatch.setattr(Rescue, "begin", beginning)
    with pytest.raises(CommunicationError):
        trained(tmp_path / "run", *SELDOM)
    assert said == ["step 4 is saved, --resume continues"]
    assert list_steps(str(tmp_path / "run")) == [4] and same(tmp_path / "run", whole, 4)


def test_weights_are_saved_while_a_pass_that_will_not_end_counts_as_a_write_to_them(tmp_path, monkeypatch):
    """As the next step's forward pass does, where it waits for a sum of ranks that are lost."""
    fused = ("--operators", "fused")
    assert trained(tmp_path / "whole", *SHORT, *fused, "--ckpt_interval", "3") == 0
    write, runs = Rescue._write, []
    Waiting.released.clear()

    def act() -> None:
        for parameter in network_parameters(runs[0].model.network).values():
            parameter.data()[:] = mx.nd.Custom(parameter.data(), op_type="waiting")
        lose()

    def written(self: Rescue, place: str) -> str:
        try:
            return write(self, place)
        finally:
            Waiting.released.set()

    monkeypatch.setattr(Rescue, "_write", written)
    monkeypatch.setattr(Rescue, "__enter__", lambda self: runs.append(self._run) or self)
    with pytest.raises(CommunicationError):
        trained(tmp_path / "run", *SELDOM, *fused, communicator=Meeting(4, act))
    assert list_steps(str(tmp_path / "run")) == [3] and same(tmp_path / "run", tmp_path / "whole", 3)


def test_what_the_disk_does_not_take_stays_left_behind(tmp_path, whole, monkeypatch):
    if not can_mount(tmp_path):
        pytest.skip("mounting a small file system needs root")
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(failures, "MEMORY", str(memory))
    with small_disk(tmp_path / "disks" / "disk", "8M") as disk:
        folder = disk / "run"
        words = command(folder, *SHORT, "--ckpt_interval", "5")
        ballast = full(disk, 4)
        with pytest.raises(TrainingError, match="No space left"):
            train(words, Meeting(4, ballast.__enter__))
        (kept,) = memory.iterdir()
        (step,) = list_steps(str(kept))
        assert list_steps(str(folder)) == [] and step in (5, 6) and same(kept, whole, step)
        assert kept.stat().st_mode & 0o777 == 0o700
        with pytest.raises(
            InputError, match=rf"No space left.*step {step} waits in this host's memory, {kept}"
        ) as caught:
            train([*words, "--resume"])
        assert failures.kind_of(caught.value) == failures.DISK, "which another start may find otherwise"
        with pytest.raises(
            InputError, match=rf"{kept}, holds its checkpoint of step {step}; continue it with"
        ):
            train(words)
        assert list_steps(str(kept)) == [step], "it is nowhere else yet"
        ballast.__exit__(None, None, None)
        assert train([*words, "--resume"]) == 0
        assert same(folder, whole, 6) and not kept.exists()
        # A later run of the folder does not take what somebody else may have left there.
        kept.mkdir(mode=0o777)
        kept.chmod(0o777)
        (kept / "0000007.json").write_text("{}")
        assert train([*words, "--resume", "--num_steps", "7"]) == 0
        assert kept.exists()


@pytest.mark.parametrize(
    ("steps", "joined"), [((6, 6), True), ((6, 5), False), ((6,), False), ((2, 2), False)]
)
def test_parts_of_one_step_that_is_newer_are_a_checkpoint(steps, joined, tmp_path):
    folder, said = str(tmp_path), []
    save(folder, 3, {"a": np.ones(2, np.float32)}, {"t": np.array(3)}, FACTS)
    for stage, step in enumerate(steps):
        own = {f"{stage}.weight": np.full(2, stage, np.float32), "word": np.ones(3, np.float32)}
        save(
            folder_of_part(folder, stage, 2),
            step,
            own,
            {"t": np.array(step), f"{stage}.weight.mean": own["word"], f"{stage}.weight.var": own["word"]},
            {**FACTS, ORDER: ["1.weight", "word", "0.weight"]},
        )
    bring_back(folder, said.append)
    assert list_steps(folder) == ([3, 6] if joined else [3]) and not Path(folder, PARTS).exists()
    assert said == (["the checkpoint of step 6 is joined from the parts of 2 stages"] if joined else [])
    if joined:
        found = newest_complete(folder, pytest.fail)
        assert list(read_index(found.params_path)) == ["1.weight", "word", "0.weight"]
        with found.open_states() as states:
            assert (
                list(states)
                == ["t", *(f"{stage}.weight.{kind}" for stage in (1, 0) for kind in ("mean", "var"))]
                and states["t"] == 6
            )
        assert found.manifest["seed"] == FACTS["seed"] and ORDER not in found.manifest
