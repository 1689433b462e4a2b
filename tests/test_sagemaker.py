"""A training job on SageMaker: hosts/sagemaker.py's call, and its hyperparameters given to run_sagemaker.py
as the training toolkit gives them, with the variables and folders that it makes."""

from __future__ import annotations

import ast
import json
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest

from base.errors import InputError
from hosts.mpirun import AS_ROOT
from run_sagemaker import announced, copy_model, training_command
from tests.processes import ROOT, run_command, start_command, until, wait_for_file
from training.checkpoint import list_steps

CALL = ["--image", "1.dkr.ecr.eu-west-1.amazonaws.com/bert:1", "--role", "arn:aws:iam::1:role/R"]
CALL += ["--instances", "1", "--instance_type", "ml.c7i.large", "--slots", "2"]
STORED = ["--channel", "corpus=s3://bucket/corpus", "--checkpoints", "s3://bucket/runs", "--spot"]
OWN = shlex.split(
    "run_pretraining_hvd.py --raw --data channel:corpus/*.txt --vocab channel:corpus/vocab.txt "
    "--model bert_1_32_2 --max_seq_length 16 --batch_size 4 --ckpt_interval 100000 "
    "--log_interval 5 --progress lines"
)


def call(*words: str):
    return run_command([sys.executable, ROOT / "hosts" / "sagemaker.py", *words])


def estimator(*words: str) -> dict:
    """The fields of the printed call, and of its fit()."""
    tree = ast.parse(call(*words).check().stdout)
    (made,) = (node for node in tree.body if isinstance(node, ast.Assign))
    fields = {each.arg: ast.literal_eval(each.value) for each in made.value.keywords}
    assert made.value.func.id == "Estimator"
    return {**fields, "fit": ast.literal_eval(tree.body[-1].value.args[0])}


def toolkits_options(hyperparameters: dict) -> list[str]:
    """Options of a rank: the toolkit reads each value as JSON if it is that, keeps its own, sorts the
    rest."""
    words = []
    for name in sorted(hyperparameters):
        if not name.startswith("sagemaker_"):
            try:
                value = json.loads(hyperparameters[name])
            except ValueError:
                value = hyperparameters[name]
            words += [f"--{name}", str(value)]
    return words


class SageMaker:
    """The folders of a job's container, and its start: the program is this test's mpirun, not the toolkit."""

    def __init__(self, folder: Path):
        self.checkpoints, self.model, self.code = (folder / name for name in ("checkpoints", "model", "code"))
        self.channel = folder / "input"
        for each in (self.checkpoints, self.model, self.code, self.channel):
            each.mkdir()
        (self.code / "run_sagemaker.py").symlink_to(ROOT / "run_sagemaker.py")
        words = [f"w{number}" for number in range(60)]
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
        (self.channel / "vocab.txt").write_text("\n".join(tokens))
        sentences = [" ".join(words[(7 * n + k) % 60] for k in range(9)) for n in range(80)]
        documents = ["\n".join(sentences[n : n + 5]) for n in range(0, 80, 5)]
        (self.channel / "text.txt").write_text("\n\n".join(documents) + "\n")

    def variables(self) -> dict[str, str]:
        return {
            "SM_HOSTS": '["algo-1"]',
            "SM_CURRENT_HOST": "algo-1",
            "SM_CHANNELS": '["corpus"]',
            "SM_CHANNEL_CORPUS": str(self.channel),
            "SM_MODEL_DIR": str(self.model),
            "SM_NETWORK_INTERFACE_NAME": "eth0",
            "OMP_NUM_THREADS": "1",
            **(AS_ROOT if os.geteuid() == 0 else {}),
            "OMPI_MCA_mpi_yield_when_idle": "1",
        }

    def start(self, hyperparameters: dict):
        options = hyperparameters["sagemaker_mpi_custom_mpi_options"].split()
        assert options[:2] == ["--NCCL_DEBUG", "WARN"]  # which the toolkit takes out
        slots = hyperparameters["sagemaker_mpi_num_of_processes_per_host"]
        program = ["mpirun", "--host", f"localhost:{slots}", "-np", slots, "--tag-output"]
        program += ["-bind-to", "none", "-map-by", "slot", "-mca", "pml", "ob1", "-mca", "btl", "^openib"]
        program += ["-mca", "orte_abort_on_non_zero_status", "1", "-x", "NCCL_DEBUG=WARN", *options[2:]]
        program += [sys.executable, "run_sagemaker.py", *toolkits_options(hyperparameters)]
        program += ["--ckpt_dir", str(self.checkpoints)]
        words = [sys.executable, ROOT / "hosts" / "sagemaker_train.py", *program]
        return start_command(words, env=self.variables(), cwd=self.code)


def test_a_spot_interruption_and_the_next_job(tmp_path):
    """SIGTERM to process 1, which is all that SageMaker sends; the job that follows gets the same folder."""
    sagemaker = SageMaker(tmp_path)
    fields = estimator(*CALL, *STORED, "--", *OWN, "--num_steps", "120", "--dropout", "0")
    with sagemaker.start(fields["hyperparameters"]) as run:
        wait_for_file(sagemaker.checkpoints / "metrics.jsonl", text="mlm_loss", run=run)
        os.kill(run.pid, signal.SIGTERM)
        result = run.wait()
    assert result.returncode == 143, result.describe()
    assert "sagemaker_train: SIGTERM; 2 ranks here save and end" in result.stderr
    (step,) = list_steps(str(sagemaker.checkpoints))
    assert 5 <= step < 120 and not list(sagemaker.model.iterdir())
    result = sagemaker.start(fields["hyperparameters"]).finish()
    assert f"continuing after step {step}" in result.stdout
    assert {"0000120.params", "0000120.json"} <= {each.name for each in sagemaker.model.iterdir()}


def test_the_call_has_what_the_plan_says():
    own = ["--data", "channel:corpus/*.txt", "--vocab", "channel:corpus/v.txt"]
    fields = estimator(*CALL, *STORED, "--tokens_per_gpu", "8192", "--", *own)
    options = fields["hyperparameters"]
    plan = ["--num_gpus", "2", "--tokens_per_gpu", "8192", "--json"]
    printed = run_command([sys.executable, ROOT / "hparams.py", *plan]).check().stdout
    planned = json.loads(printed)["options"].split()
    for name, value in zip(planned, planned[1:]):
        if name.startswith("--"):
            assert options[name[2:]] == ("true" if value.startswith("--") else value)
    assert all(isinstance(value, str) for value in options.values())
    assert fields["checkpoint_local_path"] == "/opt/ml/checkpoints" and "ckpt_dir" not in options
    assert fields["use_spot_instances"] is True and fields["max_wait"] > fields["max_run"]
    assert fields["fit"] == {"corpus": "s3://bucket/corpus"} and fields["instance_count"] == 1


def test_a_folder_of_ones_own_is_kept():
    """A file system that the job mounts; with --checkpoints SageMaker would copy another."""
    own = shlex.split("-- run_pretraining_hvd.py --dummy_data_len 8 --num_steps 3 --ckpt_dir /fsx/run")
    assert estimator(*CALL, *own)["hyperparameters"]["ckpt_dir"] == "/fsx/run"
    result = call(*CALL, "--checkpoints", "s3://bucket/runs", *own)
    assert result.returncode == 2 and "--ckpt_dir /fsx/run: SageMaker keeps /opt/ml/" in result.stderr


@pytest.mark.parametrize(
    ("words", "own", "said"),
    [
        (["--spot"], OWN, "--spot: needs --checkpoints"),
        (["--channel", "a=b"], OWN, "--channel: 'a=b' is not NAME=s3://"),
        (["--checkpoints", "bucket"], OWN, "--checkpoints: 'bucket' is not s3://"),
        (["--instance_type", "p3dn"], OWN, "--instance_type: 'p3dn' is not a type of instance"),
        ([], OWN, "--data channel:corpus/*.txt: add --channel corpus=s3://"),
        ([], ["run_pretraining_byteps.py", "--dummy_data_len", "8"], "SageMaker's toolkit starts MPI"),
        ([], [*OWN, "--dropout", "2"], "after --: argument --dropout: '2'"),
    ],
)
def test_bad_options_are_one_line_before_the_job(words, own, said):
    result = call(*CALL, *words, "--", *own)
    assert (result.returncode, result.stdout) == (2, ""), result.describe()
    assert said in result.stderr and result.stderr.count("\n") == 1, result.stderr


def test_options_become_a_command():
    environ = {"SM_CHANNEL_A": "/in/a", "SM_CHANNEL_B": "/in/b", "SM_CHANNELS": '["a", "b"]'}
    words = ["--data", "channel:a/*.txt,channel:b", "--raw", "True", "--cased", "False", "--lr", "0.1"]
    _, script, *options = training_command(words, environ)
    assert script == str(ROOT / "run_pretraining_hvd.py")
    expected = ["--data", "/in/a/*.txt,/in/b", "--raw", "--lr", "0.1", "--ckpt_dir", "/opt/ml/checkpoints"]
    assert options == [*expected, "--resume"]
    assert training_command(["--script", "finetune_squad.py"], {})[1] == str(ROOT / "finetune_squad.py")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "channel:c/x"], "there is no channel c; this job has"),
        (["--raw"], "come as pairs"),
        (["raw", "True"], "come as pairs"),
        (["--script", "../x.py"], "there is no such script"),
        (["--script", "x.py"], "there is no such script"),
    ],
)
def test_bad_hyperparameters(words, said):
    with pytest.raises(InputError, match=said):
        training_command(words, {})


def test_hosts_are_announced():
    environ = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-1"}
    ranks = {"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}
    assert announced({**environ, **ranks}) == {"RUN_HOSTS": "algo-1:8,algo-2:8"}
    assert announced({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}) == {}
    wrong = [
        ({}, "SM_HOSTS is not set"),
        ({"SM_HOSTS": "[]"}, "SM_CURRENT_HOST is not set"),
        ({**environ, "SM_HOSTS": "algo-1"}, "is no JSON list"),
        ({**environ, "SM_CURRENT_HOST": "algo-3"}, "algo-3 among them"),
        (environ, "start the job with MPI"),
        ({**environ, **ranks, "OMPI_COMM_WORLD_SIZE": "8"}, "have others"),
    ]
    for each, said in wrong:
        with pytest.raises(InputError, match=said):
            announced(each)


def test_the_model_is_that_of_the_last_checkpoint(tmp_path):
    last = ["0000008.params", "0000008.json", "run.yaml"]
    for name in ("0000004.params", "0000004.json", "0000008.states.npz", *last):
        (tmp_path / name).write_text(name)
    copy_model(str(tmp_path), str(tmp_path / "model"))
    assert {each.name for each in (tmp_path / "model").iterdir()} == {*last}


def test_a_missing_toolkit_is_named(tmp_path):
    words = [sys.executable, ROOT / "hosts" / "sagemaker_train.py"]
    result = run_command(words, env={"PATH": str(tmp_path)})
    assert result.returncode == 2 and "there is no program train" in result.stderr


def test_a_job_without_ranks_ends_with_the_signal(tmp_path):
    sleep = shutil.which("sleep")
    assert sleep is not None
    with start_command([sys.executable, ROOT / "hosts" / "sagemaker_train.py", sleep, "600"]) as run:
        until(lambda: run.pids()[1:], run)
        os.kill(run.pid, signal.SIGTERM)
        assert run.wait().returncode == 143
