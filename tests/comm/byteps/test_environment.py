from __future__ import annotations

import os
import sys

import pytest

from base.errors import InputError
from comm.byteps.environment import Place, complete_environment, read_place
from comm.byteps.library import check_gpu
from tests.processes import run_command

WORKER = {
    "DMLC_ROLE": "worker",
    "DMLC_NUM_WORKER": "3",
    "DMLC_WORKER_ID": "1",
    "DMLC_NUM_SERVER": "2",
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
    "BYTEPS_LOCAL_RANK": "3",
    "BYTEPS_LOCAL_SIZE": "4",
}


def test_one_worker_needs_no_servers():
    environ = {
        name: value for name, value in WORKER.items() if "PS_ROOT" not in name and "SERVER" not in name
    }
    environ.update(DMLC_NUM_WORKER="1", DMLC_WORKER_ID="0")
    assert read_place(environ) == Place(3, 4, 3, 4, False)
    with pytest.raises(InputError, match="DMLC_NUM_SERVER is not set"):
        read_place({**environ, "BYTEPS_FORCE_DISTRIBUTED": "1"})


def test_what_is_given_is_kept_but_for_a_port_that_was_meant_for_others():
    environ = {**WORKER, "PORT": "8080"}
    complete_environment(environ)
    assert environ == WORKER and read_place(environ) == Place(7, 12, 3, 4, True)


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        ({"DMLC_PS_ROOT_URI": "localhost"}, "127.0.0.1"),
        ({"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_NODE_HOST": "127.0.0.9"}, "127.0.0.9"),
        ({"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_INTERFACE": "lo"}, None),
        ({"DMLC_PS_ROOT_URI": "10.0.0.1"}, None),
    ],
)
def test_a_worker_of_a_loopback_scheduler_is_there_too(given, completed):
    environ = {**WORKER, **given}
    complete_environment(environ)
    assert environ.get("DMLC_NODE_HOST") == completed


@pytest.mark.parametrize("name", [name for name in WORKER if name != "DMLC_ROLE"])
def test_a_missing_variable_is_named(name):
    environ = {key: value for key, value in WORKER.items() if key != name}
    with pytest.raises(InputError, match=f"^{name} is not set.*launch.py.*bpslaunch"):
        read_place(environ)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"DMLC_ROLE": ""}, "DMLC_ROLE is not set, though"),
        ({"DMLC_ROLE": "server"}, "DMLC_ROLE=server: this script is a worker's"),
        ({"DMLC_NUM_WORKER": "two"}, "DMLC_NUM_WORKER=two: it must be a whole number, 1 or more"),
        ({"DMLC_NUM_SERVER": "0"}, "DMLC_NUM_SERVER=0"),
        ({"DMLC_WORKER_ID": "-1"}, "DMLC_WORKER_ID=-1"),
        ({"DMLC_WORKER_ID": "3"}, "DMLC_WORKER_ID=3: with DMLC_NUM_WORKER=3 it is 0 to 2"),
        ({"BYTEPS_LOCAL_RANK": "4"}, "BYTEPS_LOCAL_RANK=4: with BYTEPS_LOCAL_SIZE=4 it is 0 to 3"),
        ({"DMLC_PS_ROOT_PORT": "70000"}, "DMLC_PS_ROOT_PORT=70000"),
        ({"DMLC_PS_ROOT_URI": ""}, "DMLC_PS_ROOT_URI is not set"),
        ({"BYTEPS_GLOBAL_RANK": "3"}, "BYTEPS_GLOBAL_RANK=3 contradicts"),
        ({"BYTEPS_ENABLE_ASYNC": "1"}, "BYTEPS_ENABLE_ASYNC"),
    ],
)
def test_a_contradiction_is_one_clear_error(changes, message):
    with pytest.raises(InputError) as caught:
        read_place({**WORKER, **changes})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_script_ends_with_one_line(tmp_path):
    command = [sys.executable, "run_pretraining_byteps.py", "--dummy_data_len", "16", "--num_steps", "1"]
    environ = {name: None for name in os.environ if name.startswith(("DMLC_", "BYTEPS_"))}
    environ.update({**WORKER, "DMLC_PS_ROOT_URI": None, "DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_RANK": "0"})
    result = run_command([*command, "--ckpt_dir", tmp_path / "ckpt"], env=environ)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("error: DMLC_PS_ROOT_URI is not set")
    assert not (tmp_path / "ckpt").exists()


def test_byteps_for_gpus_needs_one_for_each_local_rank():
    check_gpu(cuda=False, gpus=0, local_rank=3)
    check_gpu(cuda=True, gpus=4, local_rank=3)
    for gpus, local_rank in ((0, 0), (2, 2)):
        with pytest.raises(InputError) as raised:
            check_gpu(True, gpus, local_rank)
        assert f"local rank {local_rank} (GPUs of this host: {gpus})" in str(raised.value)
        assert "make setup CUDA=cpu" in str(raised.value)
