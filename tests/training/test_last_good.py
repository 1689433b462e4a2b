"""While steps are skipped nothing is saved and nothing deleted, and the checkpoint that is named works."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from base.errors import InputError, NotFiniteError
from tests.training.small_runs import SANE, Stopping, trained
from tests.training.staged import arrays_of
from tests.training.test_checkpoint_facts import signed
from training import checkpoint as checkpoint_module
from training import run as run_module
from training.checkpoint import list_steps, newest_complete, read_manifest, set_aside
from training.optimizer import scaler
from training.optimizer.scaler import DynamicScaler
from training.report import read_metrics

ABSURD = ("--resume", *SANE, "--lr", "1e30")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    assert trained(folder, *SANE, communicator=Stopping(5, True)) == 143
    assert list_steps(str(folder)) == [2, 4, 6]
    return folder


@pytest.fixture
def sane(stopped, tmp_path) -> Path:
    """A run with checkpoints of its steps 2, 4 and 6, stopped there by a signal."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


class TestRun:
    def test_good_checkpoints_outlive_gradients_that_stay_infinite(self, sane, capfd):
        before = {path.name: path.read_bytes() for path in sane.glob("0*")}
        with pytest.raises(NotFiniteError, match="20th time in a row") as caught:
            trained(sane, *ABSURD, "--keep_checkpoints", "3")
        assert "the last good checkpoint is" in str(caught.value) and "0000006.params" in str(caught.value)
        assert {path.name: path.read_bytes() for path in sane.glob("0*")} == before
        said = capfd.readouterr().err
        assert re.search("warning: step 8 was skipped.*no checkpoint is saved or deleted", said)
        # And the one that is named works, at once.
        assert trained(sane, "--resume", *SANE, communicator=Stopping(3, True)) == 143
        assert list_steps(str(sane))[-1] == 10

    @pytest.mark.parametrize("rate", ["1e30", "1e3"])
    def test_a_checkpoint_is_good_only_when_a_step_was_taken_from_it(self, sane, rate):
        """That of step 7 has finite parameters of about the rate, from which gradients are infinite, or the
        loss is far off; it deletes no other, and is not the one named, which --resume takes: then the run
        goes on as if there had been no absurd rate."""
        words = (*ABSURD, "--lr", rate, "--ckpt_interval", "1", "--keep_checkpoints", "1")
        with pytest.raises(NotFiniteError) as caught:
            trained(sane, *words)
        assert list_steps(str(sane)) == [6, 7]
        message = str(caught.value)
        assert "the last good checkpoint is" in message and "0000006.params, which --resume takes:" in message
        notes: list[str] = []
        assert newest_complete(str(sane), notes.append).step == 6
        assert len(notes) == 1 and "0000007.params: no step was taken after it" in notes[0]
        # Named, the newer one is taken; from it there is no way on, and the message does not call it good.
        said = r"not one step was taken after .*0000007\.params.*--resume takes"
        with pytest.raises(NotFiniteError, match=said):
            trained(sane, *(word for word in words if word != "--resume"), "--start_step", "7")
        assert list_steps(str(sane)) == [6, 7]
        assert trained(sane, "--resume", *SANE, communicator=Stopping(1, True)) == 143
        assert newest_complete(str(sane), notes.append).step == 8 and len(notes) == 1

    def test_a_checkpoint_that_fails_at_once_is_set_aside_if_there_is_an_older_one(self, sane):
        """As where the run was stopped right after it was saved, before a step could show it."""
        absurd = (*ABSURD, "--ckpt_interval", "1")
        assert trained(sane, *absurd, communicator=Stopping(1, True)) == 143
        assert newest_complete(str(sane), print).step == 7
        with pytest.raises(NotFiniteError, match=r"--resume takes the checkpoint before it"):
            trained(sane, *absurd)
        assert newest_complete(str(sane), print).step == 6
        assert not set_aside(str(sane), 2) and newest_complete(str(sane), print).step == 6

    def test_a_signal_while_steps_are_skipped_saves_nothing(self, sane, capfd):
        code = trained(sane, *ABSURD, "--keep_checkpoints", "1", communicator=Stopping(3, False))
        assert code == 143 and list_steps(str(sane)) == [6]  # and a step taken from it has deleted the others
        assert "--resume continues, from " in capfd.readouterr().err
        assert trained(sane, "--resume", *SANE, communicator=Stopping(1, True)) == 143
        assert read_metrics(str(sane))[-1]["skipped_steps"] == 0

    def test_the_last_step_is_saved_though_it_was_skipped(self, sane):
        """A run has an end; what was good before stays beside it."""
        words = (*ABSURD, "--num_steps", "9", "--ckpt_interval", "3", "--keep_checkpoints", "1")
        assert trained(sane, *words) == 0
        assert list_steps(str(sane)) == [6, 9]
        assert read_manifest(str(sane), 9)["ended"]


def test_a_manifest_without_what_a_run_needs_is_one_line(sane):
    """With a checksum that is right, as if another program had written it."""
    path = sane / "0000006.json"
    whole = json.loads(path.read_text())
    for name in ("options", "scaler", "skips", "blocks"):
        signed(path, {key: each for key, each in whole.items() if key != name})
        with pytest.raises(InputError, match=f"has no {name}"):
            trained(sane, "--resume", *SANE, communicator=Stopping(1, True))


class TestLossScale:
    """A scale that is too great skips steps, and nothing is wrong with them."""

    @pytest.fixture(autouse=True)
    def scaled(self, monkeypatch):
        """float16 does not compute on CPUs: the scale overflows float32 instead, and becomes less by 2**5."""

        class Scaler(DynamicScaler):
            factor, growth_interval, ceiling = 2.0**5, 4, 2.0**127

        monkeypatch.setattr(scaler, "CEILING", 2.0**127)
        monkeypatch.setattr(run_module, "LossScaler", lambda: Scaler(2.0**127))
        monkeypatch.setitem(checkpoint_module._ENTRIES, "scaler", (lambda state: True, "any"))

    def test_a_checkpoint_comes_with_the_first_step_that_counts(self, tmp_path):
        folder = str(tmp_path / "run")
        assert trained(Path(folder), *SANE, "--ckpt_interval", "1", communicator=Stopping(1, True)) == 143
        (first, *_) = list_steps(folder)
        lines = {line["step"]: line["skipped_steps"] for line in read_metrics(folder) if "lr" in line}
        assert first > 1 and lines[first] == lines[first - 1] == first - 1

    def test_a_signal_in_a_search_saves_and_the_search_goes_on(self, tmp_path):
        assert trained(tmp_path / "whole", *SANE, "--num_steps", "8") == 0
        stopped = tmp_path / "stopped"
        assert trained(stopped, *SANE, "--num_steps", "8", communicator=Stopping(1, False)) == 143
        (step,) = list_steps(str(stopped))
        assert read_manifest(str(stopped), step)["scaler"]["scale"] < 2.0**127
        assert trained(stopped, "--resume", *SANE, "--num_steps", "8") == 0
        folders = str(stopped), str(tmp_path / "whole")
        assert [newest_complete(each, print).step for each in folders] == [8, 8]
        assert arrays_of(stopped, 8)[0] == arrays_of(tmp_path / "whole", 8)[0]
        one, other = (read_manifest(each, 8) for each in folders)
        assert one["scaler"] == other["scaler"] and one["skips"]["total"] == other["skips"]["total"] > 0
