"""One run at a time has a --ckpt_dir: a second names the first and ends; a killed one's is free at once."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict

import pytest

import finetune_classifier
from base.claims import Claim, Holder
from base.errors import InputError
from comm.local import LocalCommunicator
from tests.finetuned import classifier, write_data
from tests.processes import ROOT, start_ranks, until, wait_for_file
from tests.training.small_runs import SANE, command, trained
from training.checkpoint import list_steps
from training.start.lock import LOCK_FILE, locked
from training.start.start import check_start

LOCAL = LocalCommunicator()


def test_an_exception_gives_it_back(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(str(tmp_path), LOCAL):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    folder = f"{tmp_path}/file/run"
    said = f"--ckpt_dir {folder}: run.lock cannot be written"
    with pytest.raises(InputError, match=said), locked(folder, LOCAL):
        pass


def test_a_holder_on_another_host_is_watched(tmp_path, monkeypatch, capfd):
    """With every rank informed each second, so that no exchange takes long."""
    monkeypatch.setattr("training.start.lock._POLL", 0.01)
    gone = {**asdict(Holder.myself()), "host": "elsewhere", "boot": "another"}
    (tmp_path / LOCK_FILE).write_text(json.dumps(gone))
    exchanged = []

    class Counting(LocalCommunicator):
        def broadcast(self, arrays, root=0):
            exchanged.append(len(exchanged))
            if len(exchanged) == 10:  # it shows a sign of life
                os.utime(tmp_path / LOCK_FILE)

    with pytest.raises(InputError, match="elsewhere"), locked(str(tmp_path), Counting()):
        pass
    assert len(exchanged) >= 10
    said = capfd.readouterr().err
    assert said.count("waiting 60 s at most") == 1 and "elsewhere" in said


def test_two_runs_and_a_killed_one(tmp_path, capfd):
    folder = tmp_path / "run"
    words = command(folder, "--num_steps", 10**6, "--ckpt_interval", 50, "--keep_checkpoints", 1)
    script = ROOT / "run_pretraining_hvd.py"
    with start_ranks(script, 1, "none", args=words) as run:
        wait_for_file(folder / LOCK_FILE, run=run)
        named = rf"--ckpt_dir {folder} is held by process {run.find('run_pretraining_hvd.py')[0]} on "
        for more in ((), ("--resume",)):  # the first has no checkpoint yet, or has some
            with pytest.raises(InputError, match=named):
                trained(folder, *SANE, *more)
        until(lambda: list_steps(str(folder)), run)
        os.kill(run.find("run_pretraining_hvd.py")[0], signal.SIGKILL)
        run.wait()
    assert (folder / LOCK_FILE).exists()
    last = list_steps(str(folder))[-1]
    assert trained(folder, *SANE, "--resume", "--num_steps", str(last + 1)) == 0
    assert "waiting" not in capfd.readouterr().err, "nobody is waited for"
    assert not (folder / LOCK_FILE).exists()


def test_a_run_that_ended_between_check_and_lock_is_not_overwritten(tmp_path, monkeypatch):
    folder = tmp_path / "run"

    def check_and_see_another_run_end(*arguments):
        start = check_start(*arguments)
        folder.mkdir()
        (folder / "0000002.json").write_text("{}")
        return start

    monkeypatch.setattr("training.inputs.check_start", check_and_see_another_run_end)
    with pytest.raises(InputError, match="holds checkpoints up to step 2"):
        trained(folder, *SANE)


def test_runs_of_seeds_hold_the_whole_and_each_its_own(tmp_path):
    write_data(tmp_path)
    words = classifier(tmp_path, tmp_path / "out", num_steps=1, seed=None, seeds=2, resume=True)
    for place in (tmp_path / "out", tmp_path / "out" / "seed_0"):
        place.mkdir(exist_ok=True)
        claim = Claim(str(place / LOCK_FILE), print)
        assert claim.attempt()
        with pytest.raises(InputError, match=rf"--ckpt_dir {place} is held by process {os.getpid()} "):
            finetune_classifier.main(words)
        claim.release()
