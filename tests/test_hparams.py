"""hparams.py: its plans, its checks of a run, and the launch commands that it prints. The guides show many of
them, which test_readme.py compares to the letter."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hparams
import lamb_paper
from tests.processes import ROOT, python_3_9, run_command
from training.options import parse_options, stage_config, stage_options
from training.plan import make_plan

BPSLAUNCH = str(Path(sys.executable).with_name("bpslaunch"))
clusters = st.tuples(st.integers(1, 2048), st.integers(512, 65536), st.integers(1, 256))


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs `hparams.py line more...` in this process and folder; gives exit code, stdout and stderr."""
    monkeypatch.chdir(ROOT)

    def run(line: str, *more: object) -> tuple[int, str, str]:
        try:
            code = hparams.main(shlex.split(line) + [str(one) for one in more])
        except SystemExit as stop:  # argparse's own errors
            code = stop.code
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


# ---------------------------------------------------------------------------------------------- the command


def test_one_stage_takes_its_own_of_a_pair(run):
    args = "--num_gpus 256 --tokens_per_gpu 8192,4096 --accumulate 2,4"
    _, both, _ = run(args)
    assert run(f"{args} --stages both")[1] == both
    _, out, _ = run(f"{args} --stage 2")
    assert "stage 1" not in out and out.splitlines()[-1] == both.splitlines()[-1]
    printed, alone = (json.loads(run(f"{args} --json{more}")[1]) for more in ("", " --stage 2"))
    assert printed["tokens_per_gpu"] is None and printed["accumulate"] is None
    assert (alone["tokens_per_gpu"], alone["accumulate"]) == (4096, 4)
    assert alone["stages"] == printed["stages"][1:] and alone["options"] == alone["stages"][0]["options"]


def test_batch_sizes_that_no_accumulation_gives(run):
    args = "--num_gpus 32 --tokens_per_gpu 8192 --target_batch_size"
    code, _, err = run(args, 300)
    assert code == 2 and "nearest: 2048 with --accumulate 1\n" in err
    code, _, err = run(args, 32768, "--target_batch_size_2", 700)
    assert code == 2 and "--target_batch_size_2 700" in err and "stage 2" in err


def test_replicas_of_a_pipeline_count_as_gpus(run):
    """A step's sequences follow from the batches of replicas, not of ranks."""
    args = "--tokens_per_gpu 8192 --accumulate 8 --json"
    code, out, _ = run(f"--num_gpus 256 --pipeline_stages 4 {args}")
    staged = json.loads(out)
    assert (code, staged["num_gpus"], staged["pipeline_stages"]) == (0, 256, 4)
    plain = json.loads(run(f"--num_gpus 64 {args}")[1])
    assert staged["options"] == f"{plain['options']} --pipeline_stages 4"
    for one, other in zip(staged["stages"], plain["stages"]):
        assert one == {**other, "options": f"{other['options']} --pipeline_stages 4"}
    code, out, _ = run("--num_gpus 8 --pipeline_stages 4 --tokens_per_gpu 8192")
    assert out.startswith("8 GPUs in 2 replicas of 4 pipeline stages, 8192 tokens a replica in one pass")
    code, _, err = run("--num_gpus 10 --pipeline_stages 4 --tokens_per_gpu 8192")
    assert code == 2 and "no multiple of --pipeline_stages 4; 8 or 12 would do" in err
    run_of = "--check --num_gpus 256 --pipeline_stages 4 --stage 1 --tokens_per_gpu 8192 --accumulate 8"
    code, out, _ = run(f"{run_of} --lr 0.005 --num_steps 14063")
    assert code == 0
    assert out.startswith("stage 1: 64 replicas of 4 GPUs x 8192 tokens x 8 accumulated = 32768")


def test_launch_of_a_pipeline(run, tmp_path):
    (tmp_path / "hosts").write_text("a slots=3\nb slots=1\n")
    launch = f"--tokens_per_gpu 8192 --hostfile {tmp_path / 'hosts'} --pipeline_stages 2 --launch"
    code, out, err = run(f"{launch} hvd -- --dummy_data_len 128 --dtype float32")
    assert code == 0 and "--pipeline_stages 2" in out and "mpirun -np 4" in out
    assert "between hosts in replica 1, stage 0 to 1 (rank 2 on a to rank 3 on b)" in err
    _, _, err = run(f"{launch} hvd -- --dummy_data_len 128 --dtype float32 --placement inter_first")
    assert "--placement inter_first" in err and "rank 0 on a to rank 3 on b" in err
    code, _, err = run(f"{launch} byteps -- --dummy_data_len 128 --dtype float32")
    assert code == 2 and "BytePS has neither groups of ranks" in err
    code, _, err = run(f"{launch} hvd -- --pipeline_stages 2")
    assert code == 2 and "give it before --" in err
    code, _, err = run(f"{launch} hvd --pipeline_stages 3")
    assert code == 2 and "4 slots are no multiple of --pipeline_stages 3; 3 or 6 would do" in err


def test_check_as_json(run):
    run_of = "--check --num_gpus 256 --tokens_per_gpu 8192 --accumulate 2"
    stated = "--num_steps 25600 --lr 0.00354 --warmup_ratio 0.1"
    code, as_json, _ = run(f"{run_of} {stated} --json")
    (stage,) = json.loads(as_json)["stages"]
    assert code == 1 and not json.loads(as_json)["agrees"]
    assert stage["sentences"] == run(f"{run_of} {stated}")[1].splitlines()
    found = [(each["option"], each["given"], each["paper"]) for each in stage["disagreements"]]
    assert found == [("num_steps", 25600, 14063), ("lr", 0.00354, 0.005), ("warmup_ratio", 0.1, 0.2)]
    code, as_json, _ = run(f"{run_of} --lr 0.005 --json")
    assert code == 0 and json.loads(as_json)["agrees"]


@given(clusters, st.sampled_from([(1,), (2,), (1, 2)]), st.integers(1, 256))
def test_check_accepts_what_the_plan_prints(cluster, stages, accumulate):
    recipe = lamb_paper.Recipe(stages, (64, 256))  # the length of neither says which stage it is
    options = lamb_paper.plan(*cluster[:2], (cluster[2], accumulate), recipe).options()
    assert hparams.main(["--check", "--num_gpus", str(cluster[0]), *shlex.split(options)]) == 0


@pytest.mark.parametrize("stages", ["1", "2", "both"])
def test_check_accepts_what_mixed_batch_prints(stages, run):
    _, out, _ = run(f"--num_gpus 256 --tokens_per_gpu 8192 --mixed_batch --stage {stages}")
    options = next(line for line in out.splitlines() if line.startswith(f"--stages {stages} "))
    code, out, _ = run(f"--check --num_gpus 256 {options}")
    assert code == 0 and "warning" not in out
    assert out.count("as in the paper's mixed 64K/32K run") == (2 if stages == "both" else 1)
    wrong = options.replace("0.004", "0.014") if stages != "1" else options.replace("0.006", "0.014")
    code, out, _ = run(f"--check --num_gpus 256 {wrong}")
    assert code == 1 and "--lr 0.014" in out
    # of both stages only the second is at fault
    assert ("stage 1" in out and "as in the paper's mixed 64K/32K run" in out) == (stages == "both")


def test_check_judges_both_stages_by_pairs(run):
    """A pair makes it a run of both; what is given once is the value of both."""
    args = "--check --num_gpus 256 --tokens_per_gpu 8192 --accumulate 4,8"
    code, out, _ = run(f"{args} --num_steps 7038,1563 --lr 0.006,0.005 --warmup_ratio 0.2843")
    assert code == 1
    first, second = out.split("stage 2: ")
    assert first.endswith("\n--num_steps, --lr, --warmup_ratio: as in the paper's mixed 64K/32K run\n")
    assert re.findall("^--[a-z_]+", second, re.MULTILINE) == ["--warmup_ratio"]
    # --batch_size counts sequences, of each stage's length
    sizes = "--check --num_gpus 8 --batch_size 64,16 --num_steps 900000,400000 --lr 0.000625"
    code, out, _ = run(sizes)
    assert "stage 1: 8 GPUs x 8192 tokens" in out and "stage 2: 8 GPUs x 8192 tokens" in out
    assert code == 1 and out.count("\n--lr ") == 1
    # with --stages the others of the pairs are left alone
    only_2 = f"{args} --num_steps 1,1563 --lr 9,0.005 --warmup_ratio 0.2 --stages 2"
    code, out, _ = run(only_2)
    assert code == 0 and "stage 1" not in out
    code, out, _ = run("--check --stages 2 --num_gpus 64 --batch_size 16 --num_steps 50000")
    assert code == 0 and "1024 sequences of 512 tokens" in out


@pytest.mark.parametrize(
    ("args", "flags"),
    [
        ("--num_gpus 256 --batch_size 8192", ["--tokens_per_gpu 8192", "--target_batch_size 8192"]),
        ("--num_gpus 256 --batch_size 8192 --use_avg_len --accumulate 2", ["--tokens_per_gpu 8192"]),
        ("--num_gpus 256 --batch_size 8192,4096", ["--tokens_per_gpu 8192,4096"]),
        ("--num_gpus 8 --batch_size 64 --json", ["--tokens_per_gpu 8192", "--target_batch_size 64"]),
        ("--num_gpus 7 --batch_size 64 --stage 1", ["--tokens_per_gpu 8192"]),
        ("--num_gpus 7 --batch_size 16 --stage 2", ["--tokens_per_gpu 8192"]),
        ("--launch hvd --hostfile hosts/local --batch_size 4096 -- --vocab 'a b'", ["--tokens_per_gpu 4096"]),
    ],
)
def test_batch_size_without_check_points_to_what_was_meant(args, flags, run):
    """Each command of the message is a command that works."""
    code, out, err = run(args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("hparams.py: --batch_size ") and "--check" in err
    commands = re.findall(r"python hparams.py ([^;\n]*)", err)
    for flag in flags:
        assert any(flag in command for command in commands), err
    for command in commands:
        assert run(command)[0] == 0, command
        assert command.partition(" -- ")[2] == args.partition(" -- ")[2]


CLUSTER = "--num_gpus 8 --tokens_per_gpu 8192"


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ("--tokens_per_gpu 8192", "--num_gpus"),
        ("--num_gpus 8", "--tokens_per_gpu"),
        ("--num_gpus 0 --tokens_per_gpu 8192", "--num_gpus"),
        ("--num_gpus 8 --tokens_per_gpu 511", "--tokens_per_gpu"),
        (f"{CLUSTER} --accumulate 0", "--accumulate"),
        (f"{CLUSTER} --target_batch_size 0", "--target_batch_size"),
        (f"{CLUSTER} --max_seq_length_2 513", "--max_seq_length_2"),
        (f"{CLUSTER} --max_seq_length_1 0", "--max_seq_length_1"),
        (f"{CLUSTER} --baseline_steps_1 0", "--baseline_steps_1"),
        (f"{CLUSTER} --baseline_batch_size 0", "--baseline_batch_size"),
        (f"{CLUSTER} --accum 2", "--accum"),
        (f"{CLUSTER} --accumulate 2 --target_batch_size 512", "--target_batch_size"),
        (f"{CLUSTER} --mixed_batch --max_seq_length_1 64", "--mixed_batch"),
        (f"{CLUSTER} --target_batch_size_2 512", "--target_batch_size_2"),
        (f"{CLUSTER} --lr 0.1", "--lr"),
        (f"{CLUSTER} --hostfile hosts/local", "--hostfile"),
        (f"{CLUSTER} --launch hvd", "--hostfile"),
        (f"{CLUSTER} --launch byteps --hostfile hosts/1x_p3dn --sockets 2", "--sockets"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/none", "hosts/none"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/1x_p3dn --sockets 3", "--sockets"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/1x_p3dn --json", "--json"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/1x_p3dn --sockets 0", "--sockets"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/1x_p3dn -- --lr 1", "--lr"),
        (f"{CLUSTER} --launch byteps --hostfile hosts/1x_p3dn -- --vocap=v.txt", "--vocap"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/1x_p3dn -- stray", "stray"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/1x_p3dn -- --optimizer sgd", "--optimizer"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/1x_p3dn -- --help", "run_pretraining_hvd.py --help"),
        (f"{CLUSTER} -- --data x", "--data"),
        (f"{CLUSTER} --check", "--check"),
        (f"{CLUSTER} --check --lr 1,2,3", "--lr"),
        (f"{CLUSTER} --check --lr 1,", "--lr"),
        (f"{CLUSTER} --check --stages both --lr 1 --max_seq_length 128,513", "--max_seq_length 513"),
        (f"{CLUSTER} --check --lr 1 --mixed_batch", "--mixed_batch"),
        (f"{CLUSTER} --accumulate 2,0", "--accumulate"),
        ("--num_gpus 8 --tokens_per_gpu 8192,511", "--tokens_per_gpu"),
        ("--num_gpus 8,16 --tokens_per_gpu 8192", "--num_gpus"),
        (f"{CLUSTER} --check --batch_size 4 --lr 1", "--batch_size"),
    ],
)
def test_bad_input_is_one_line_that_names_the_flag(args, named, run):
    code, out, err = run(args)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and named in err


# ------------------------------------------------------------------------------------------------ launching


def on_hosts(folder: Path, lines: str, *more: object) -> list[object]:
    """Words for stage 1 on the hosts of a file with these lines."""
    (folder / "hosts").write_text(lines)
    return ["--tokens_per_gpu", 8192, "--stage", 1, "--hostfile", folder / "hosts", *more]


def launch(run, *args) -> list[str]:
    """The printed command, split into words as a shell would."""
    code, out, err = run("--launch hvd", *args)
    assert code == 0, err
    assert "\n\n" not in out
    return split(out)


def split(text: str) -> list[str]:
    return shlex.split(text.replace("\\\n", ""), comments=True)


@pytest.mark.parametrize("launcher", ["hvd", "byteps"])
def test_the_mixed_batch_is_one_command_of_pairs(launcher, run):
    """The training script takes it, as a run of the published values."""
    args = f"--launch {launcher} --tokens_per_gpu 8192 --mixed_batch --hostfile hosts/32x_p3dn"
    code, out, err = run(args, "--", "--data", "x.txt")
    assert code == 0 and err.count("warning: stage ") == 2  # where the published values come from
    first, _, command = out.partition("\n")
    assert first == "# both stages: 7038 steps of 65536 sequences of 128, then 1561 of 32768 sequences of 512"
    words = split(command.split("\n\n")[0])
    assert lamb_paper.mixed_batch_plan(256, 8192).options() in " ".join(words)
    script = next(at for at, word in enumerate(words) if word.startswith("run_pretraining_"))
    published = [(7038, 0.006, 2001, 20), (1561, 0.004, 200, 80)]
    for own, expected in zip(stage_options(parse_options(words[script + 1 :], "")), published):
        config = stage_config(own)
        length = config.data.masking.max_seq_length
        plan = make_plan(config.batch, config.optimization, 256, length, own.stage)
        assert (plan.num_steps, plan.lr, plan.warmup_steps, plan.max_predictions_per_seq) == expected
        assert plan.warnings == ()
        assert f"{(65536, 32768)[own.stage - 1]} sequences of {(128, 512)[own.stage - 1]}" in plan.summary


def test_a_stage_says_what_it_begins_with(run):
    args = "--launch hvd --tokens_per_gpu 8192 --hostfile hosts/1x_p3dn --stage"
    for stage, begins in ((1, False), (2, True), ("both", False)):
        code, out, _ = run(args, stage)
        assert code == 0 and ("# It begins with the parameters of stage 1" in out) == begins
    code, out, _ = run(args, 2, "--", "--init_from", "other:900")
    assert code == 0 and "begins with" not in out and "--init_from other:900" in out


def test_launch_passes_the_users_options_on(run, tmp_path):
    hostfile = tmp_path / "my hosts"
    hostfile.write_text("a slots=8\nb slots=8\n")
    args = ["--tokens_per_gpu", 8192, "--hostfile", hostfile, "--stage", 1, "--interface", "ens5"]
    own = ["--data", "/my corpus/*.txt,$HOME/it's", "--model=bert_12_768_12", "--vocab", "v.txt"]
    command = launch(run, *args, "--", *own)
    assert command[4] == str(hostfile)
    start = command.index("--data")
    assert command[start : start + len(own)] == own
    assert command.count("--data") == 1 and "--raw" in command
    assert "bert_24_1024_16" not in command and "float16" in command
    assert "NCCL_SOCKET_IFNAME=ens5" in command and "btl_tcp_if_include" in command
    assert command[-2:] == ["--ckpt_dir", "ckpt_dir"]


@pytest.mark.parametrize(
    ("lines", "sockets", "mapping"),
    [
        ("a slots=16\n", None, "-map-by ppr:8:socket -bind-to socket"),
        ("a slots=2\n", None, "-map-by ppr:2:socket -bind-to socket"),
        ("a slots=8\n", 1, "-map-by ppr:8:socket -bind-to socket"),
        ("a slots=4\nb slots=8\n", None, "-map-by slot -bind-to none"),
        ("a slots=9\n", None, "-map-by slot -bind-to none"),
    ],
)
def test_launch_maps_ranks_to_sockets(lines, sockets, mapping, run, tmp_path):
    more = ["--sockets", sockets] if sockets else []
    assert mapping in " ".join(launch(run, *on_hosts(tmp_path, lines, *more)))


def write_recorder(path: Path, variable: str) -> None:
    """Writes a program that does nothing but write its words and variables into a file, which is named by
    the value of `variable`."""
    code = f"json.dump([sys.argv[1:], dict(os.environ)], open(os.environ[{variable!r}], 'w'))"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys\n{code}\n")
    path.chmod(0o755)


def byteps_blocks(run, *args) -> list[str]:
    """Output of --launch byteps: launch.py's command, then the roles' by hand."""
    code, out, err = run("--launch byteps", *args)
    assert code == 0, err
    return out.rstrip("\n").split("\n\n")


def test_byteps_commands_name_the_interface(run, tmp_path):
    lines = "10.0.0.1 slots=2\n10.0.0.2 slots=2\n10.0.0.1 slots=2\n"
    easy, by_hand = byteps_blocks(run, *on_hosts(tmp_path, lines, "--interface", "ens5"))
    assert "--interface ens5" in easy
    assert "DMLC_INTERFACE=ens5" in by_hand and "DMLC_PS_ROOT_URI=10.0.0.1 " in by_hand
    assert "DMLC_NUM_WORKER=3 " in by_hand and "DMLC_NUM_SERVER=2 " in by_hand
    code, _, err = run("--launch byteps", *on_hosts(tmp_path, "a slots=2\nb slots=3\n"))
    assert code == 2 and "a has 2 slots and b has 3" in err


def role_commands(by_hand: str) -> dict[str, str]:
    """The blocks of text below the lines of comment, by their first word after "the" or "a"."""
    commands, name = {}, ""
    for line in by_hand.splitlines():
        if line.startswith("# "):
            name = re.sub(r"^# (the |a )?", "", line).split()[0].strip(",:")
            commands[name] = ""
        else:
            commands[name] += line + "\n"
    return commands


def test_byteps_roles_by_hand_get_their_variables(run, tmp_path):
    _, by_hand = byteps_blocks(run, *on_hosts(tmp_path, "p3dn-01 slots=8\np3dn-02 slots=8\n"))
    commands = role_commands(by_hand)
    assert list(commands) == ["stage", "scheduler", "servers", "worker"]
    write_recorder(tmp_path / "bpslaunch", "DMLC_ROLE")
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for name, value in (("PS_ROOT_URI", "10.0.0.1"), ("INTERFACE", "ens5"), ("", "/x/*.txt")):
        # The shell stops until the values that only the user can know are set.
        result = run_command(["sh", "-c", commands["stage"]], cwd=tmp_path, env=env)
        variable = f"DMLC_{name}" if name else "DATA"
        assert result.returncode != 0 and f"{variable}:" in result.stderr
        env[variable] = value
    for role, recorded in (("scheduler", "scheduler"), ("servers", "server")):
        run_command(["sh", "-c", commands["stage"] + commands[role]], cwd=tmp_path, env=env).check()
        words, environ = json.loads((tmp_path / recorded).read_text())
        expected = {"NUM_WORKER": "2", "NUM_SERVER": "2", "PS_ROOT_URI": "10.0.0.1", "PS_ROOT_PORT": "9091"}
        assert words == []
        assert {name: environ.get(f"DMLC_{name}") for name in expected} == expected
    text = commands["stage"] + commands["worker"]
    result = run_command(["sh", "-c", text], cwd=tmp_path, env=env)
    assert result.returncode != 0 and "0 on p3dn-01, 1 on p3dn-02" in result.stderr
    run_command(["sh", "-c", text], cwd=tmp_path, env={**env, "DMLC_WORKER_ID": "1"}).check()
    words, environ = json.loads((tmp_path / "worker").read_text())
    assert words[:2] == ["python", "run_pretraining_byteps.py"] and environ["DMLC_WORKER_ID"] == "1"


# The launcher, and what numbers the two ranks of this machine.
WAYS = {
    "mpirun": ("hvd", "OMPI_COMM_WORLD_RANK"),
    **dict.fromkeys(("launch.py", "bpslaunch"), ("byteps", "BYTEPS_LOCAL_RANK")),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("own", [[], ["--data", "it's *.txt,$HOME", "--vocab=a b"]], ids=["DATA", "own"])
def test_commands_run_as_printed(way, own, run, tmp_path, monkeypatch):
    """The whole command, with a script that writes down what reached it on each of two local ranks. Without
    data the shell stops it."""
    if shutil.which("mpirun" if way == "mpirun" else BPSLAUNCH) is None:
        pytest.skip("needs Open MPI's mpirun, or BytePS")
    monkeypatch.chdir(tmp_path)
    launcher, rank_of = WAYS[way]
    write_recorder(tmp_path / f"run_pretraining_{launcher}.py", rank_of)
    (tmp_path / "hosts").symlink_to(ROOT / "hosts")
    (tmp_path / "a.txt").write_text("")  # a glob that some shell expands would find it
    args = f"--launch {launcher} --tokens_per_gpu 1024 --stage 1 --hostfile hosts/local"
    code, out, err = run(args, *(["--", *own] if own else []))
    assert code == 0, err
    text = out.rstrip("\n").split("\n\n")[way == "bpslaunch"]
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "DATA": None}
    env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    if not own:
        result = run_command(["sh", "-c", text], cwd=tmp_path, env=env)
        assert result.returncode != 0 and "DATA" in result.stderr
        assert not (tmp_path / "0").exists()
        env["DATA"] = '*.txt,/it\'s a "b"/*'
    run_command(["sh", "-c", text], cwd=tmp_path, env=env).check()
    for rank in ("0", "1"):
        argv, environment = json.loads((tmp_path / rank).read_text())
        expected = own or ["--data", env["DATA"]]
        start = argv.index("--data")
        assert argv[start : start + len(expected)] == expected
        assert argv[argv.index("--num_steps") + 1] == str(math.ceil(512 * 900_000 / 16))
        assert environment["MXNET_SAFE_ACCUMULATION"] == "1"
        assert environment[rank_of.replace("RANK", "SIZE")] == "2"
        assert launcher == "hvd" or environment["DMLC_NUM_WORKER"] == "1"


# Stage 1 is three steps of 16 sequences of 32 tokens, stage 2 four steps of 4 of 128: run as it is printed.
SHORT = (
    "--tokens_per_gpu 256 --max_seq_length_1 32 --max_seq_length_2 128 --baseline_batch_size 16 "
    "--baseline_steps_1 3 --baseline_steps_2 1 --hostfile hosts/local"
)
TINY = "--dummy_data_len 32,128 --model bert_1_32_2 --log_interval 1 --peak_tflops 1"


@pytest.fixture
def folder(tmp_path):
    """A working directory like this clone's, whose environment is this one."""
    for name in ("hosts", "run_pretraining_hvd.py", "run_pretraining_byteps.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def run_as_pasted(text: str, folder: Path):
    """In a shell with nothing prepared: no environment activated, nothing allowed to root."""
    bin_of_venv = str(Path(sys.prefix) / "bin")
    path = [one for one in os.environ["PATH"].split(os.pathsep) if one.rstrip("/") != bin_of_venv]
    env = {"PATH": os.pathsep.join(path), "VIRTUAL_ENV": None, "PYTHONPATH": None, "OMP_NUM_THREADS": "1"}
    env.update(OMPI_ALLOW_RUN_AS_ROOT=None, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=None)
    return run_command(["sh", "-c", text], cwd=folder, env=env)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI's mpirun")
@pytest.mark.parametrize("way", ["mpirun", "launch.py", "bpslaunch"])
def test_commands_for_this_machine_train_where_they_are_pasted(way, folder, run, monkeypatch):
    monkeypatch.chdir(folder)
    launcher = "hvd" if way == "mpirun" else "byteps"
    code, out, err = run(f"{SHORT} --launch {launcher} -- {TINY}")
    assert code == 0, err
    text = out.rstrip("\n").split("\n\n")[way == "bpslaunch"]
    result = run_as_pasted(text, folder).check()
    assert "2 processes on " in result.stdout
    assert stages_saved(folder / "ckpt_dir") == {3: 1, 7: 2}
    if way == "mpirun":  # the commands of one stage are the same run in two
        both = (folder / "ckpt_dir").rename(folder / "both")
        (folder / "ckpt_dir").mkdir()
        for path in both.glob("0000003.*"):
            shutil.copy(path, folder / "ckpt_dir")
        for stage in (1, 2):
            _, out, _ = run(f"{SHORT} --launch hvd --stage {stage} -- {TINY}")
            assert stages_of(out) == [stages_of(text)[stage - 1]]
        run_as_pasted(out, folder).check()
        assert stages_saved(folder / "ckpt_dir") == {3: 1, 7: 2}
        for name in ("0000007.params", "0000007.states.npz"):
            assert (folder / "ckpt_dir" / name).read_bytes() == (both / name).read_bytes()


def stages_of(text: str) -> list[Any]:
    """The configuration of each stage of a command for the training script, but for what it was given as."""
    words = split(text)
    script = next(at for at, word in enumerate(words) if word.startswith("run_pretraining_"))
    stages = map(stage_config, stage_options(parse_options(words[script + 1 :], "")))
    return [{**vars(each), "start": None, "options": None, "given": None} for each in stages]


def stages_saved(place: Path) -> dict[int, int]:
    """The stage that each checkpoint, by its step, records."""
    manifests = {path: json.loads(path.read_text()) for path in place.glob("[0-9]*.json")}
    return {int(path.stem): manifest["stage"] for path, manifest in manifests.items()}


def test_nothing_is_assumed_of_other_machines(run, tmp_path, monkeypatch):
    """Their user, their GPUs and their environment are not this machine's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for lines, is_here in (("localhost slots=2\n", True), ("p3dn-01 slots=8\n", False)):
        (tmp_path / "hosts").write_text(lines)
        for launcher in ("hvd", "byteps"):
            args = f"--tokens_per_gpu 8192 --stage 1 --hostfile hosts --launch {launcher}"
            _, text, _ = run(args)
            assert (".venv/bin/python run_pretraining" in text) == is_here
            assert ("--dtype float16" in text) != is_here
            root = launcher == "hvd" and is_here and os.geteuid() == 0
            assert ("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun" in text) == root


def test_workers_of_one_host_share_its_cores_by_hand(run, tmp_path):
    for lines, shown in (
        ("a slots=2\nb slots=2\n", None),
        ("a slots=2\nb slots=2\na slots=2\nb slots=2\n", "RANKS_ON_HOST=4"),
        ("a slots=2\nb slots=2\na slots=2\n", 'RANKS_ON_HOST="${RANKS_ON_HOST:?4 on a, 2 on b}"'),
    ):
        _, by_hand = byteps_blocks(run, *on_hosts(tmp_path, lines))
        assert shown in by_hand if shown else "RANKS_ON_HOST" not in by_hand


# ----------------------------------------------------------------------------- standard library, Python 3.9


@pytest.mark.parametrize("which", ["this", "3.9"])
def test_runs_without_site_packages(which, tmp_path):
    python = sys.executable if which == "this" else python_3_9()
    if python is None:
        pytest.skip("no Python 3.9 on this machine")
    args = ["--tokens_per_gpu", "8192", "--hostfile", str(ROOT / "hosts" / "local"), "--launch"]
    plan = ["--num_gpus", "8", "--tokens_per_gpu", "8192", "--json"]
    for options in ([*args, "hvd"], [*args, "byteps"], plan, ["--help"]):
        words = [python, "-S", "-E", "-W", "error", ROOT / "hparams.py", *options]
        result = run_command(words, cwd=tmp_path)
        assert (result.returncode, "Traceback" in result.stderr) == (0, False), result.stderr
        assert result.stdout


def test_starts_without_what_it_does_not_need():
    """It answers in a tenth of a second (bench.startup): what is imported is most of that."""
    code = (
        "import sys, hparams\n"
        "hparams.main(['--num_gpus', '8', '--tokens_per_gpu', '8192', '--json'])\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    result = run_command([sys.executable, "-c", code])
    imported = set(result.stderr.split())
    assert {"hparams", "argparse"} <= imported and result.stdout.startswith("{"), result.stderr
    heavy = {"numpy", "mxnet", "gluonnlp", "matplotlib", "yaml", "tqdm", "h5py", "tokenizers", "google"}
    assert not imported & {*heavy, "asyncio", "concurrent", "logging", "multiprocessing", "subprocess", "xml"}


def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} hparams.py --num_gpus 256 --tokens_per_gpu 8192 --json | true"
    for _ in range(3):  # whether the pipe is gone before the output depends on timing
        result = run_command(["sh", "-c", command])
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
