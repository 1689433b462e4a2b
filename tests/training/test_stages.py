"""Both stages in one launch, and the same steps however they are interrupted; other starts of a run."""

from __future__ import annotations

import shutil
import signal
import threading
import weakref
from pathlib import Path
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest

import convert
import training.loop
import training.run
import training.saving
import training.train
from base.errors import InputError
from bert.weights.params_file import write_params
from tests.faults.jobs import metrics
from tests.training.results.test_members import Forgetful
from tests.training.staged import END, FIRST, SECOND, arrays_of, manifest_of, read_params, run, states_of
from training.checkpoint import list_steps
from training.optimizer.optimizer import Optimizer
from training.optimizer.schedule import Schedule
from training.report import RunReporter
from training.start.start import data_seed
from training.stopping import Stopped


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory) -> Path:
    """Both stages without an interruption."""
    directory = tmp_path_factory.mktemp("whole")
    assert run(directory, corpus) == 0
    return directory


def test_single_sentences(corpus, tmp_path, capsys):
    """Both stages without a next sentence: no figure of it anywhere, and the loss falls."""
    assert run(tmp_path, corpus, single_sentences=True, num_steps="12,4") == 0
    shown = capsys.readouterr().out.lower()
    assert "mlm" in shown and "nsp" not in shown
    lines = metrics(tmp_path)
    assert all(value is None for line in lines for name, value in line.items() if "nsp" in name)
    losses = [line["mlm_loss"] for line in lines if "mlm_loss" in line]
    assert losses[0] > losses[11] > 0
    states = states_of(tmp_path, 16)
    (name,) = (each for each in states if each.endswith("classifier.weight.mean"))
    assert not states[name].any()


@pytest.fixture(scope="module")
def first(corpus, tmp_path_factory) -> Path:
    """Stage 1 alone."""
    directory = tmp_path_factory.mktemp("first")
    assert run(directory, corpus, stages="1") == 0
    return directory


class Interrupted(BaseException):
    """The process ends here, as far as a test can have it."""


def test_steps_and_schedules_of_both(whole):
    lines = metrics(whole)
    training = [each for each in lines if "lr" in each]
    assert [each["step"] for each in training] == list(range(1, END + 1))
    assert [each["stage"] for each in training] == [1] * FIRST + [2] * SECOND
    schedules = Schedule(FIRST, 0.02, 1), Schedule(SECOND, 0.01, 2)
    expected = [schedules[0](step) for step in range(1, FIRST + 1)]
    expected += [schedules[1](step) for step in range(1, SECOND + 1)]
    assert [each["lr"] for each in training] == expected
    evaluations = [(each["step"], each["stage"]) for each in lines if "eval_mlm_loss" in each]
    assert evaluations == [(2, 1), (4, 1), (4, 2), (6, 2), (7, 2)]
    short, long = (each for each in lines if "eval_mlm_loss" in each and each["step"] == FIRST)
    assert short["eval_sequences"] > long["eval_sequences"], "the longer ones are fewer"


def test_manifests_know_their_stage(whole):
    facts = [manifest_of(whole, step) for step in list_steps(str(whole))]
    found = [(each["step"], each["stage"], each["begun"], each["num_steps"]) for each in facts]
    assert found[:2] == [(2, 1, 0, FIRST), (4, 1, 0, FIRST)]
    assert found[2:] == [(6, 2, FIRST, SECOND), (7, 2, FIRST, SECOND)]
    assert facts[1]["options"]["max_seq_length"] == 16 and facts[2]["options"]["max_seq_length"] == 32
    assert facts[2]["blocks"] == 2, "stage 2's data begin anew"


def test_stage_2_after_stage_1_alone(whole, first, corpus, tmp_path):
    """Two launches, and no --resume: nothing is written over."""
    shutil.copytree(first, tmp_path / "run")
    assert run(tmp_path / "run", corpus, stages="2") == 0
    for step in (FIRST, END):
        assert arrays_of(tmp_path / "run", step) == arrays_of(whole, step)
    assert metrics(tmp_path / "run") == metrics(whole)


def interrupt() -> None:
    raise Interrupted


def stop_in(
    monkeypatch: Any, where: Any, name: str, at: int, before: bool, act: Callable[[], None] = interrupt
) -> None:
    """Ends the run by `act` in call number `at` of a function, before or after its work."""
    calls, original = [0], getattr(where, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == at and before:
            act()
        result = original(*args, **kwargs)
        if calls[0] == at and not before:
            act()
        return result

    monkeypatch.setattr(where, name, counted)


# A function, the number of the call that does not return, and whether it does its work before.
MOMENTS: dict[str, tuple[Any, str, int, bool]] = {
    "in stage 1": (training.loop.Loop, "_take", 3, True),
    "before stage 1's end is saved": (training.saving, "save", 2, True),
    "before stage 1's last evaluation": (training.run, "evaluate", 2, True),
    "after stage 1's last evaluation": (RunReporter, "evaluation", 2, False),
    "after stage 1's report": (training.loop, "summarize", 1, False),
    "when stage 2 is open": (training.train, "open_run", 2, False),
    "after stage 2's first evaluation": (RunReporter, "evaluation", 3, False),
    "in stage 2's second step": (training.loop.Loop, "_take", FIRST + 2, True),
    "after stage 2's first checkpoint": (training.saving, "save", 3, False),
    "before the very last evaluation": (training.run, "evaluate", 5, True),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_interrupted_and_resumed_it_is_the_same_run(moment, whole, corpus, tmp_path, monkeypatch):
    with monkeypatch.context() as patches:
        stop_in(patches, *MOMENTS[moment])
        with pytest.raises(Interrupted):
            run(tmp_path, corpus, resume=True)
    assert run(tmp_path, corpus, resume=True) == 0
    for step in (FIRST, END):
        assert arrays_of(tmp_path, step) == arrays_of(whole, step)
    assert metrics(tmp_path) == metrics(whole)


@pytest.mark.parametrize("damaged", [(), (6, 7)])
def test_a_finished_run_takes_no_more_steps_or_those_whose_checkpoints_are_damaged(
    damaged, whole, corpus, tmp_path
):
    shutil.copytree(whole, tmp_path / "run")
    for step in damaged:
        (tmp_path / "run" / f"{step:07d}.params").write_bytes(b"short")
    assert run(tmp_path / "run", corpus, resume=True) == 0
    assert arrays_of(tmp_path / "run", END) == arrays_of(whole, END)
    assert metrics(tmp_path / "run") == metrics(whole)


@pytest.mark.parametrize("moment", ["before", "after", "opening"])
def test_a_signal_at_the_boundary(moment, whole, corpus, tmp_path, monkeypatch, capsys):
    """During the last step of stage 1 (before it is saved), after it, and while stage 2 is opened, which ends
    the process at once: stage 1 is saved."""
    where = {
        "before": (training.loop.Loop, "_log", FIRST),
        "after": (training.loop, "summarize", 1),
        "opening": (training.train, "open_run", 2),
    }[moment]
    with monkeypatch.context() as patches:
        stop_in(patches, *where, True, lambda: signal.raise_signal(signal.SIGTERM))
        try:
            assert run(tmp_path, corpus, resume=True) == 143
        except Stopped as stopped:
            assert moment == "opening" and stopped.code == 143
    assert list_steps(str(tmp_path))[-1] == FIRST
    said = capsys.readouterr().err
    assert ("stopped by a signal" in said and f"step {FIRST}" in said) == (moment != "opening")
    assert run(tmp_path, corpus, resume=True) == 0
    assert arrays_of(tmp_path, END) == arrays_of(whole, END)
    assert metrics(tmp_path) == metrics(whole)


def test_evaluation_alone_of_a_staged_run(whole, corpus, tmp_path, capsys):
    """It asks for no stages, and has no plan to warn of; afterwards the run can still be resumed."""
    shutil.copytree(whole, tmp_path / "run")
    long = {"max_seq_length": 32, "num_steps": None, "batch_size": None, "lr": None, "warmup_ratio": None}
    assert run(tmp_path / "run", corpus, stages=None, data=None, resume=True, **long) == 0
    assert "warning" not in capsys.readouterr().err
    *lines, last = metrics(tmp_path / "run")
    assert lines == metrics(whole) and "stage" not in last
    assert last["eval_mlm_loss"] == pytest.approx(lines[-1]["eval_mlm_loss"], rel=1e-6)
    assert run(tmp_path / "run", corpus, resume=True) == 0


def test_hours_for_each_stage(corpus, tmp_path):
    """36 and 72 ms of steps, however many these are; interrupted in stage 2."""
    options = {"num_steps": None, "budget_hours": "1e-5,2e-5", "data_eval": None, "ckpt_interval": 100}
    assert run(tmp_path, corpus, resume=True, **options) == 0
    lines = metrics(tmp_path)
    (end,) = {each["step"] for each in lines if each["stage"] == 1} & set(list_steps(str(tmp_path)))
    begun = [each for each in lines if each["stage"] == 2]
    assert begun[0]["step"] == end + 1 and begun[0]["lr"] < 0.01
    facts = manifest_of(tmp_path, begun[-1]["step"])
    assert (facts["stage"], facts["begun"], facts["num_steps"], facts["ended"]) == (2, end, None, True)
    assert facts["training_s"] >= 0.072 and manifest_of(tmp_path, end)["training_s"] >= 0.036
    assert run(tmp_path, corpus, resume=True, **options) == 0
    assert metrics(tmp_path) == lines, "nothing is left to do"


def test_stage_2_is_a_run_that_begins_with_stage_1s_parameters(corpus, tmp_path):
    """Another way to the same numbers: a run without stages, from the file, with stage 2's plan and seed."""
    assert data_seed(5, 1) == data_seed(5, None) == 5 != data_seed(5, 2), "masks of stage 2 are its own"
    without_chance = {"dropout": 0, "data_eval": None}
    assert run(tmp_path / "both", corpus, **without_chance) == 0
    alone = {
        "stages": None, "init_from": tmp_path / "both" / f"{FIRST:07d}.params", "seed": data_seed(5, 2),
        "max_seq_length": 32, "batch_size": 2, "num_steps": SECOND, "lr": 0.01, "warmup_ratio": 0.5,
    }  # fmt: skip
    assert run(tmp_path / "alone", corpus, **without_chance, **alone) == 0
    assert arrays_of(tmp_path / "both", END) == arrays_of(tmp_path / "alone", SECOND)
    own = [each for each in metrics(tmp_path / "both") if each["stage"] == 2]
    others = metrics(tmp_path / "alone")
    for each in own:
        each["step"] -= FIRST
        del each["stage"]
    assert own == others


def test_another_length_of_stage_1_after_its_end_is_said(whole, corpus, tmp_path, capsys):
    shutil.copytree(whole, tmp_path / "run")
    assert run(tmp_path / "run", corpus, resume=True, num_steps=f"9,{SECOND}") == 0
    assert f"--num_steps 9: stage 1 has ended with step {FIRST}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("there", "steps", "named"),
    [
        ("whole", f"{FIRST},1", f"--num_steps 1: .* at step {SECOND} of stage 2"),
        ("first", "3,3", "at step 4 of stage 1"),
    ],
)
def test_fewer_steps_than_were_taken(there, steps, named, corpus, tmp_path, request):
    shutil.copytree(request.getfixturevalue(there), tmp_path / "run")
    with pytest.raises(InputError, match=named):
        run(tmp_path / "run", corpus, resume=True, num_steps=steps)
    assert metrics(tmp_path / "run") == metrics(request.getfixturevalue(there))


def test_stage_1_is_made_longer_before_stage_2(first, corpus, tmp_path, capsys):
    shutil.copytree(first, tmp_path / "run")
    more = FIRST + 2
    assert run(tmp_path / "run", corpus, resume=True, num_steps=f"{more},{SECOND}") == 0
    assert f"stage 1 was planned for {FIRST} steps, and now has {more}" in capsys.readouterr().err
    assert manifest_of(tmp_path / "run", more + SECOND)["begun"] == more


def test_the_seeds_second_phase(whole, corpus, tmp_path):
    """Parameters of phase 1 without optimizer state, a rate with an end and a power, warmup of its own."""
    changes = {"stages": 2, "end_lr": 0.0003, "decay_power": 0.5, "lr": 0.004, "warmup_ratio": 0.34}
    changes.update(num_steps=6, max_seq_length=32, batch_size=2)
    assert run(tmp_path, corpus, init_from=f"{whole}:{FIRST}", **changes) == 0
    lines = metrics(tmp_path)
    training = [each for each in lines if "lr" in each]
    assert (lines[0]["step"], "eval_mlm_loss" in lines[0]) == (0, True), "before its first step"
    schedule = Schedule(6, 0.004, 2, 0.0003, 0.5)
    assert [each["lr"] for each in training] == [schedule(step) for step in range(1, 7)]
    assert training[-1]["lr"] == 0.0003
    assert {each["stage"] for each in training} == {2}
    assert states_of(tmp_path, 6)["t"] == 6, "the optimizer has counted from zero"


class TestInitFrom:
    """Runs without stages that begin with parameters."""

    PLAIN = {"stages": None, "max_seq_length": 32, "batch_size": 2, "num_steps": 2, "lr": 0.01}
    PLAIN.update(warmup_ratio=0.5, data_eval=None)

    def test_a_folder_a_step_and_a_file(self, first, corpus, tmp_path, capsys):
        forms = {"step": f"{first}:4", "folder": first, "file": first / "0000004.params", "fresh": None}
        found = {}
        for name, form in forms.items():
            assert run(tmp_path / name, corpus, init_from=form, **self.PLAIN) == 0
            said = f"parameters of {first}/0000004.params" in capsys.readouterr().out
            assert said == (form is not None)
            found[name] = arrays_of(tmp_path / name, 2)
        assert found["step"] == found["folder"] == found["file"] and found["step"][0] != found["fresh"][0]

    def test_the_same_command_resumes(self, first, corpus, tmp_path, monkeypatch):
        """A checkpoint in ckpt_dir wins; what --init_from names may be gone by then."""
        options = {**self.PLAIN, "num_steps": 4, "init_from": tmp_path / "weights.params", "resume": True}
        shutil.copy(first / "0000004.params", tmp_path / "weights.params")
        assert run(tmp_path / "whole", corpus, **options) == 0
        with monkeypatch.context() as patches:
            stop_in(patches, training.saving, "save", 1, before=False)
            with pytest.raises(Interrupted):
                run(tmp_path / "run", corpus, **options)
        (tmp_path / "weights.params").unlink()
        assert run(tmp_path / "run", corpus, **options) == 0
        assert arrays_of(tmp_path / "run", 4) == arrays_of(tmp_path / "whole", 4)

    def test_only_damaged_checkpoints_are_an_error(self, first, corpus, tmp_path):
        options = {**self.PLAIN, "init_from": first, "resume": True}
        assert run(tmp_path, corpus, **options) == 0
        (tmp_path / "0000002.params").write_bytes(b"short")
        with pytest.raises(InputError, match=r"none of its checkpoints is complete.*0000002\.params"):
            run(tmp_path, corpus, **options)

    def test_without_any_reset_it_is_the_run_in_another_folder(self, corpus, tmp_path):
        options = {**self.PLAIN, "num_steps": 4}
        assert run(tmp_path / "whole", corpus, **options) == 0
        given = f"{tmp_path / 'whole'}:2"
        assert run(tmp_path / "fork", corpus, init_from=given, reset="none", **options) == 0
        assert arrays_of(tmp_path / "fork", 4) == arrays_of(tmp_path / "whole", 4)
        assert metrics(tmp_path / "fork") == metrics(tmp_path / "whole")[2:]

    @pytest.mark.parametrize("reset", ["optimizer", "schedule", "data"])
    def test_each_reset(self, reset, whole, corpus, tmp_path):
        """A start at stage 1's second step: steps, moments and place go on unless they are reset."""
        options = {**self.PLAIN, "stages": "1", "num_steps": 6, "max_seq_length": 16, "batch_size": 4}
        options["seed"] = None
        assert run(tmp_path, corpus, init_from=f"{whole}:2", reset=reset, **options) == 0
        begun = 0 if "schedule" in reset else 2
        assert [each["step"] for each in metrics(tmp_path)] == list(range(begun + 1, 7))
        steps = 6 - begun
        assert states_of(tmp_path, 6)["t"] == steps + (0 if "optimizer" in reset else 2)
        assert manifest_of(tmp_path, 6)["blocks"] == steps + (0 if "data" in reset else 2)

    def test_resets_within_a_folder(self, first, corpus, tmp_path):
        shutil.copytree(first, tmp_path / "run")
        changes = {"stages": "1", "start_step": 2, "reset": "optimizer,data", "data_eval": None}
        assert run(tmp_path / "run", corpus, **changes) == 0
        assert states_of(tmp_path / "run", 4)["t"] == 2
        assert manifest_of(tmp_path / "run", 4)["blocks"] == 2
        assert [each["lr"] for each in metrics(tmp_path / "run")[-2:]] == [
            Schedule(FIRST, 0.02, 1)(step) for step in (3, 4)
        ]

    def test_stage_2_with_stage_1s_moments(self, first, corpus, tmp_path):
        shutil.copytree(first, tmp_path / "run")
        changes = {"stages": "2", "keep_optimizer_state": True, "data_eval": None}
        assert run(tmp_path / "run", corpus, **changes) == 0
        assert states_of(tmp_path / "run", END)["t"] == END
        assert manifest_of(tmp_path / "run", END)["blocks"] == SECOND

    @pytest.mark.parametrize("partial", [False, True])
    def test_longer_and_shorter_positions(self, partial, first, corpus, tmp_path, capsys):
        """More than needed: the first ones. Fewer: an error, or the others begin random."""
        source = read_params(first, 4)
        name, rows = "encoder.position_weight", 64 if partial else 600
        source[name] = np.resize(source[name], (rows, 16))
        path = tmp_path / "weights.params"
        with path.open("wb") as file:
            write_params(file, source)
        options = {**self.PLAIN, "init_from": path, "num_steps": 1, "lr": 1e-30}
        if partial:
            with pytest.raises(InputError, match="positions 64, this run .*positions 512"):
                run(tmp_path / "run", corpus, **options)
        assert run(tmp_path / "run", corpus, init_partial=partial or None, **options) == 0
        found = read_params(tmp_path / "run", 1)[name]
        both = min(rows, 512)
        np.testing.assert_allclose(found[:both], source[name][:both], rtol=1e-5, atol=1e-12)
        assert found.shape == (512, 16) and np.abs(found[both:]).max(initial=0) < 0.2
        said = capsys.readouterr().err
        assert ("from position 64 on" if partial else "of its 600 positions the first 512") in said


def test_nothing_of_stage_1_is_held_when_stage_2_is_opened(corpus, tmp_path, monkeypatch):
    """Network, optimizer and feeds are gone, their threads have ended, and the communicator has let go."""
    held, original = [], training.train.open_run

    def opened(*args: Any) -> Any:
        before = [(each() is None) for each in held]
        threads = [each.name for each in threading.enumerate() if each.name.startswith("prefetch")]
        assert before == [True] * len(held) and threads == []
        run = original(*args)
        held.extend(weakref.ref(each) for each in (run, run.model.network, run.optimizer, run.feed))
        return run

    monkeypatch.setattr(training.train, "open_run", opened)
    communicator = Forgetful()
    assert run(tmp_path, corpus, communicator, data_eval=None) == 0
    assert len(held) == 8 and communicator.forgotten == 1


def test_float32_masters_are_parameters():
    """They go over to another stage though the moments do not; a float32 run has none."""
    names, rng = ["a.weight", "b.bias"], np.random.default_rng(0)
    weights = [mx.nd.array(rng.normal(size=(3, 4)), dtype="float16") for _ in names]
    one = Optimizer("lamb", names, weights)
    for array in one.state_arrays().values():
        array[:] = mx.nd.array(rng.normal(size=array.shape))
    other = Optimizer("lamb", names, [weight.copy() for weight in weights])
    assert other.has_masters
    other.restore(one.state(), keeps=False)
    for name, array in other.state().items():
        expected = one.state()[name] if name.endswith(".master") else np.zeros_like(array)
        np.testing.assert_array_equal(array, expected)
    plain = Optimizer("lamb", names, [weight.astype("float32") for weight in weights])
    assert not plain.has_masters
    before = other.state()
    other.restore(plain.state(), keeps=False)
    np.testing.assert_array_equal(other.state()["a.weight.master"], before["a.weight.master"])
    with pytest.raises(InputError, match=r"a\.weight\.master is float32 \(2,\)"):
        other.restore({"a.weight.master": np.zeros(2, np.float32)}, keeps=False)


def test_parameters_of_other_formats_are_the_same(first, corpus, tmp_path):
    """A checkpoint converted, and a run that begins with it, against one that begins with the checkpoint."""
    plain = {**TestInitFrom.PLAIN, "num_steps": 1}
    assert run(tmp_path / "ours", corpus, init_from=first, **plain) == 0
    for form in ("huggingface", "tensorflow", "gluonnlp"):
        assert convert.main([str(first), str(tmp_path / form), "--to", form]) == 0
        assert run(tmp_path / f"from-{form}", corpus, init_from=tmp_path / form, **plain) == 0
        assert arrays_of(tmp_path / f"from-{form}", 1) == arrays_of(tmp_path / "ours", 1)
