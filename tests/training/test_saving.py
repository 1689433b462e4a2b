"""Saving in the background: what is written is the state at the time, training waits for the copy alone, and
every failure is reported."""

from __future__ import annotations

import os
import threading
import time

import mxnet as mx
import numpy as np
import pytest

from base import memory
from base.errors import NotFiniteError, TrainingError
from bert.model import trained
from bert.operators import load_operators
from tests.processes import LIMIT
from tests.training.tiny import Heard, make_step, random_batch, tiny_network
from training import saving
from training.checkpoint import Kept, list_steps, newest_complete
from training.optimizer.states import MomentType
from training.saving import Saver, copied_bytes


@pytest.fixture
def disk(monkeypatch):
    """A disk that is as slow as the test wants, and full when it says so."""
    return Disk(monkeypatch)


class Disk:
    def __init__(self, monkeypatch):
        self.free = threading.Event()
        self.begun = threading.Event()
        self.full = False
        self.at_once = self.most = 0
        self._write_params = saving.save.__globals__["write_params"]
        monkeypatch.setitem(saving.save.__globals__, "write_params", self.write_params)

    def write_params(self, file, arrays):
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.begun.set()
        assert self.free.wait(LIMIT)
        self._write_params(file, arrays)
        self.at_once -= 1
        if self.full:
            raise OSError(28, "No space left on device")


def saver_of(directory, reporter=None, keep=0, **options) -> Saver:
    return Saver(str(directory), Kept(keep), reporter or Heard(), **options)


def state(value, size=1000):
    return (
        {"a": mx.nd.full((size,), value), "b": np.full((2, 3), value, np.float16)},
        {"t": np.array(value, np.int64), "a.mean": mx.nd.full((size,), -value)},
    )


def read(directory, step):
    found = newest_complete(str(directory), lambda message: pytest.fail(message))
    assert found.step == step
    params = mx.nd.load(found.params_path)
    with found.open_states() as states:
        return {**{name: array.asnumpy() for name, array in params.items()}, **dict(states)}


def test_training_goes_on_while_the_disk_is_busy_and_does_not_change_what_is_written(tmp_path, disk):
    reporter = Heard()
    with saver_of(tmp_path, reporter) as saver:
        parameters, states = state(3.0)
        saver.begin(1, parameters, states, {"seed": 5})
        assert saver.sound() and disk.begun.wait(LIMIT)
        for array in (parameters["a"], parameters["b"], states["a.mean"]):
            array[:] = 9.0  # the update
        assert saver.sound() and not list_steps(str(tmp_path)) and not reporter.notes
        disk.free.set()
        assert saver.finish()
    found = read(tmp_path, 1)
    assert (found["a"] == 3).all() and (found["b"] == 3).all() and found["b"].dtype == np.float16
    assert (found["a.mean"] == -3).all() and found["t"] == 3 and found["t"].shape == ()
    assert reporter.notes == [f"saved {tmp_path}/0000001.params"] and not reporter.warnings


def test_the_update_of_a_step_waits_for_the_copy(tmp_path, monkeypatch):
    """With the real step: its flags are asked for when the gradient is there, before weights change."""
    network = tiny_network()
    step, optimizer = make_step(network)
    batch = random_batch(np.random.default_rng(0), 4, 12, 4, least_masked=1)
    arrays = {name: parameter.data() for name, parameter in trained(network).items()}
    before = {name: array.asnumpy() for name, array in arrays.items()}
    copy = saving._copy

    def slow(source, target):
        time.sleep(0.005)
        copy(source, target)

    monkeypatch.setattr(saving, "_copy", slow)
    with saver_of(tmp_path) as saver:
        saver.begin(1, arrays, optimizer.state_views(), {})
        step(2, [batch], 0.01, True, [saver])
    found = read(tmp_path, 1)
    assert found["t"] == 0 and optimizer.t == 1
    for name, array in before.items():
        assert found[name].tobytes() == array.tobytes()
        assert (arrays[name].asnumpy() != array).any() or "bias" in name


def test_one_checkpoint_at_a_time_in_the_same_memory(tmp_path, disk):
    """The older one is deleted only when the new one is complete."""
    with saver_of(tmp_path, keep=1) as saver:
        saver.begin(1, *state(1.0), {})
        saver.sound()
        held = {name: array.ctypes.data for name, array in saver._buffers.items()}
        second = threading.Thread(target=saver.begin, args=(2, *state(2.0), {}))
        second.start()
        time.sleep(0.05)
        assert second.is_alive() and disk.most == 1  # it waits
        disk.free.set()
        second.join(LIMIT)
        assert saver.finish() and disk.most == 1
        assert {name: array.ctypes.data for name, array in saver._buffers.items()} == held
        disk.free.clear(), disk.begun.clear()
        saver.begin(3, *state(3.0), {})
        assert disk.begun.wait(LIMIT) and list_steps(str(tmp_path)) == [2]
        assert (read(tmp_path, 2)["a"] == 2).all()
        disk.free.set()
    assert list_steps(str(tmp_path)) == [3]


def test_a_full_disk_is_reported_at_the_next_step_and_the_last_checkpoint_stays(tmp_path, disk):
    disk.free.set()
    reporter = Heard()
    message = r"step 2 .*No space left.*checkpoint of step 1 is intact"
    with pytest.raises(TrainingError, match=message):  # noqa: SIM117 - the inner one ends first
        with saver_of(tmp_path, reporter) as saver:
            saver.begin(1, *state(1.0), {})
            assert saver.finish()
            disk.full = True
            saver.begin(2, *state(2.0), {})
            while saver.sound():  # the steps that follow
                time.sleep(0.001)
            saver.begin(3, *state(3.0), {})  # nothing more is written
            saver.take([saver.sound(), saver.finite])
    assert sorted(os.listdir(tmp_path)) == [f"0000001{each}" for each in (".json", ".params", ".states.npz")]
    assert not reporter.warnings  # it is the exception itself
    with pytest.raises(TrainingError, match="rank 0 could not save"):
        saver_of(tmp_path).take([False, True])  # another rank, which has agreed


def test_a_defect_in_the_thread_ends_the_run_too(tmp_path):
    with saver_of(tmp_path) as saver:
        saver.begin(1, {"a": np.ones(3, np.complex64)}, {}, {})  # the format has no such numbers
        with pytest.raises(ValueError, match="complex64"):
            saver.take([saver.finish(), saver.finite])


@pytest.mark.parametrize("free", [1e9, 0])
def test_parameters_that_are_not_finite_are_not_saved(tmp_path, free):
    """Every rank ends with the same kind of exception: a search goes on with its next run."""
    with saver_of(tmp_path, available=lambda: free) as saver:
        parameters, states = state(1.0)
        parameters["a"][500] = np.nan
        saver.begin(1, parameters, states, {})
        assert not saver.finish() and not saver.finite and list_steps(str(tmp_path)) == []
        with pytest.raises(NotFiniteError, match="at step 1, so it is not saved"):
            saver.take([False, saver.finite])
    with pytest.raises(NotFiniteError, match="rank 0 has not saved"):
        saver_of(tmp_path).take([False, False])


@pytest.mark.parametrize(("kind", "steps"), [(RuntimeError, [1]), (KeyboardInterrupt, [])])
def test_what_was_begun_is_completed_when_a_run_fails_but_not_when_it_is_interrupted(
    tmp_path, disk, kind, steps
):
    threading.Timer(0.1, disk.free.set).start() if steps else None
    with pytest.raises(kind), saver_of(tmp_path) as saver:
        saver.begin(1, *state(1.0), {})
        raise kind
    assert list_steps(str(tmp_path)) == steps
    disk.free.set()
    assert saver.finish() and not [each for each in threading.enumerate() if each.name.startswith("save-")]


def test_a_failure_that_nobody_could_agree_on_is_at_least_said(tmp_path, disk):
    disk.free.set()
    disk.full, reporter = True, Heard()
    with pytest.raises(RuntimeError), saver_of(tmp_path, reporter) as saver:
        saver.begin(1, *state(1.0), {})
        raise RuntimeError("another rank is lost")
    assert len(reporter.warnings) == 1 and "No space left" in reporter.warnings[0]


def test_without_memory_for_a_copy_training_waits_for_the_disk(tmp_path, monkeypatch):
    reporter = Heard()
    monkeypatch.setattr(memory, "available_memory", lambda: memory.Available(1000, "left by its limit"))
    with saver_of(tmp_path, reporter) as saver:
        saver.begin(1, *state(1.0), {})
        assert list_steps(str(tmp_path)) == [1] and saver.sound()  # it is there already
    assert not saver._buffers and len(reporter.notes) == 1
    assert reporter.warnings == [
        "a copy of the state needs 8,020 bytes more, and 1,000 are free: training waits while the checkpoint "
        "of step 1 is written"
    ]


def test_without_memory_for_the_states_of_all_ranks_the_run_ends_with_a_reason(tmp_path):
    with saver_of(tmp_path, available=lambda: 7999) as saver:
        assert saver.room("small", np.empty(1000, np.float32)).shape == (1000,)
        with pytest.raises(
            TrainingError, match="needs 8,000 bytes more, and 7,999 are free; .* --shard_states"
        ):
            saver.room("large", np.empty(2000, np.float32))


@pytest.mark.parametrize(
    "dtype, moments", [("float32", "float32"), ("float16", "float32"), ("float32", "bfloat16")]
)
def test_the_bytes_of_a_copy_are_known_beforehand(tmp_path, dtype, moments):
    if moments == "bfloat16" and not load_operators():
        pytest.skip("the fused operators have not been built")
    network = tiny_network()
    if dtype == "float16":
        network.cast(dtype)
    _, optimizer = make_step(network, native=moments == "bfloat16", moments=MomentType(moments))
    parameters = {name: parameter.data() for name, parameter in trained(network).items()}
    with saver_of(tmp_path) as saver:
        saver.begin(1, parameters, optimizer.state_views(), {})
        saver.sound()
        held = sum(array.nbytes for array in saver._buffers.values()) - 8  # but for the count of steps
    count = sum(array.size for array in parameters.values())
    assert held == copied_bytes(count, dtype, moments)


def test_the_thread_that_writes_gives_way(tmp_path, disk):
    with saver_of(tmp_path) as saver:
        saver.begin(1, *state(1.0), {})
        assert disk.begun.wait(LIMIT)
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, saver._thread.native_id) == min(19, own + 10) or own
        disk.free.set()
