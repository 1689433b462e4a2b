"""--options_file: what the command line makes of the same text; bad files are one line that says where."""

from __future__ import annotations

import sys
import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from base.errors import InputError
from tests.processes import ROOT, run_command
from tests.training.test_options import COMPANIONS, GLUONNLP
from training.options import expand_options, parse_options
from training.options_file import write_options

MORE = {
    "schedule": ("wsd", "wsd"),
    "budget_hours": ("2.5", 2.5),
    "peak_tflops": ("312", 312.0),
    "comm_timeout": ("30", 30.0),
    "text_format": ("books", "books"),
}


@pytest.fixture
def write(tmp_path):
    def file(text: str | bytes) -> str:
        path = tmp_path / "o.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return str(path)

    return file


def options(*words: object) -> dict:
    found = vars(parse_options(list(map(str, words)), ""))
    return {name: value for name, value in found.items() if name != "options_file"}


def rejected(*words: object) -> str:
    with pytest.raises(InputError) as caught:
        options(*words)
    return str(caught.value)


@pytest.mark.parametrize("name", [*GLUONNLP, *MORE])
def test_an_option_is_what_the_command_line_makes_of_its_text(name, write):
    text, value, *_ = {**GLUONNLP, **MORE}[name]
    needed = COMPANIONS.get(name, []) + (["--raw"] if name == "text_format" else [])
    path = write(f"{name}: {'true' if text is None else text}\n")
    others = [*needed, *([] if name == "data" else ["--data", "x.txt"])]
    from_file = options("--options_file", path, *others)
    assert from_file == options(*([f"--{name}"] if text is None else [f"--{name}={text}"]), *others)
    assert from_file[name] == value and type(from_file[name]) is type(value)


@pytest.mark.parametrize(
    "line, name, value",
    [
        ("lr: 1e-3", "lr", 1e-3),  # a string in YAML 1.1
        ("lr: '0.5'", "lr", 0.5),
        ("lr: 1", "lr", 1.0),  # an int there
        ("batch_size: 010", "batch_size", 10),  # 8 there
        ("data: no", "data", "no"),  # false there
        ("data: 2001-01-01", "data", "2001-01-01"),  # a date
        ('data: "true"', "data", "true"),
        ("data: [a-*.txt, 'b c.txt']", "data", "a-*.txt,b c.txt"),
        ("data: !!str 5", "data", "5"),
        ("data: >-\n  a\n  b", "data", "a b"),
        ("data: x\nvocab: null", "vocab", None),
        ("data: x\nlr:", "lr", None),
        ("data: x\nbatch_size: ~", "batch_size", 8),
        ("data: x\nraw: false", "raw", False),
        ("data: x\nraw: TRUE", "raw", True),
        ("data: x\nsp_nbest: -1\nsentencepiece: s.model", "sp_nbest", -1),
        ("dropout: &half 0.5\nclip_norm: *half\ndata: x", "clip_norm", 0.5),
        ("%YAML 1.1\n---\ndata: x\n...\n", "data", "x"),
        ("data: d\u00e9j\u00e0/*.txt", "data", "d\u00e9j\u00e0/*.txt"),
    ],
)
def test_values(line, name, value, write):
    others = [] if line.startswith("data") or "data: x" in line else ["--data", "x"]
    assert options("--options_file", write(line), *others)[name] == value


def test_the_command_line_wins_and_takes_back(write):
    path = write("data: x\nraw: true\nnum_steps: 40\nlr: 1e-3\nverbose: true\n")
    found = options("--lr", "0.5", "--options_file", path, "--seed", "3")
    assert (found["lr"], found["num_steps"], found["raw"], found["seed"]) == (0.5, 40, True, 3)
    found = options(f"--options_file={path}", "--raw=false", "--num_steps=null", "--budget_hours", "2")
    assert found["raw"] is False and found["num_steps"] is None
    assert found["budget_hours"] == 2 and found["verbose"] is True
    assert options("--data", "x", "--raw=true")["raw"] and not options("--data", "x", "--raw=false")["raw"]
    assert options("--data", "x", "--raw", "--raw=false", "--raw")["raw"]
    assert "--raw=maybe" in rejected("--data", "x", "--raw=maybe")
    none = write("vocab: null\nverbose: false\n")
    assert options("--options_file", none, "--data", "x", "--num_steps=null")["num_steps"] is None
    assert options("--data=null")["data"] == "null", "without a file it is a name"


def test_options_that_exclude_each_other_do_so_across_both(write):
    path = write("data: x\nresume: true\n")
    assert "--resume and --start_step" in rejected("--options_file", path, "--start_step", "5")
    assert options("--options_file", path, "--start_step", "5", "--resume=false")["start_step"] == 5


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("# one\nlearning_rat: 3", ["line 2", "'learning_rat'"]),
        ("batch-size: 3", ["line 1", "'batch-size'", "batch_size?"]),
        ("--num_step: 3", ["'--num_step'", "num_steps?"]),
        ("? [a]\n: 3", ["line 1", "a sequence"]),
        ("<<: {lr: 3}", ["'<<'"]),
        ("options_file: other.yaml", ["options_file", "cannot name another"]),
        ("help: true", ["'help'"]),
        ("lr: 3\n\nlr: 4", ["line 3", "lr", "line 1"]),
        ("lr: fast", ["line 1", "--lr", "'fast'"]),
        ("lr: [1, 2, 3]", ["--lr", "'1,2,3'"]),
        ("data: x\nnum_steps: 1.5", ["line 2", "--num_steps", "'1.5'"]),
        ("num_steps: 1_0", ["line 1", "--num_steps", "'1_0'"]),  # 10 in YAML 1.1, and for Python
        ("lr: [0.1, 1_0]", ["line 1", "--lr", "'1_0'"]),
        ("num_steps: --", ["line 1", "--num_steps", "'--'"]),
        ("optimizer: sgd", ["--optimizer", "'sgd'", "lamb"]),
        ("raw: yes", ["raw", "'yes'", "true or false"]),
        ("raw: 'true'", ["raw", "true or false"]),
        ("raw: [true]", ["raw", "sequence"]),
        ("data: {a: b}", ["data", "one value"]),
        ("data: []", ["data", "one value"]),
        ("data: [a, [b]]", ["data", "one value"]),
        ("data: [a, null]", ["data", "empty value"]),
        ("data: !!python/object/apply:os.system ['touch owned']", ["data", "tag"]),
        ("data: !!binary aGVsbG8=", ["data", "tag"]),
        ("raw: !mine true", ["raw", "tag"]),
        ("data: *.txt", ["line 1", "no YAML", "quote"]),
        ("lr: [1", ["no YAML"]),
        ("lr: 1\n\tdata: 2", ["line 2", "no YAML"]),
        ("a: 1\n---\nb: 2", ["no YAML"]),
        ("- lr", ["holds no options"]),
        ("", ["holds no options"]),
        pytest.param("[" * 5_000, ["nested too deeply"], id="nested"),
        pytest.param("data: " + "x" * 70_000, ["65,536 bytes"], id="large"),
        (b"\xff\xfe\x00", ["no YAML"]),
        (b"data: a\x00b", ["no YAML"]),
        ("a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]", ["'a'"]),
    ],
)
def test_bad_files_are_one_line_that_says_where(text, wanted, write, tmp_path):
    path = write(text)
    begun = time.process_time()  # of this process alone: others may be busy
    message = rejected("--data", "x", "--options_file", path)
    assert time.process_time() - begun < 3
    assert message.startswith(f"--options_file {path}")
    for each in wanted:
        assert each in message, message
    assert [each.name for each in tmp_path.iterdir()] == ["o.yaml"], "nothing has been executed"


def test_files_that_cannot_be_read(tmp_path, write):
    assert "No such file" in rejected("--options_file", tmp_path / "none.yaml")
    assert "Is a directory" in rejected("--options_file", tmp_path)
    assert "no regular file" in rejected("--options_file", "/dev/zero")
    path = write("data: x")
    assert "one such file" in rejected("--options_file", path, "--options_file", path)
    assert "--options_file" in rejected("--options_file")


@settings(max_examples=60)
@given(
    text=st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), min_size=1),
    number=st.floats(1e-300, 3e38),
    whole=st.integers(1, 10**9),
    flag=st.booleans(),
)
def test_what_is_written_is_read_back(tmp_path_factory, text, number, whole, flag):
    path = str(tmp_path_factory.mktemp("written") / "run.yaml")
    values = {"data": text, "lr": number, "num_steps": whole, "raw": flag, "vocab": None}
    comments = ["a comment", f"one line, whatever is in it: {text}"]
    write_options(path, {**values, "options_file": "gone"}, comments)
    found = options("--options_file", path)
    assert {name: found[name] for name in values} == values
    with open(path, "rb") as file:  # and by other readers of YAML as the same types
        assert yaml.safe_load(file) == values


def test_lists_are_written_for_pairs(tmp_path):
    path = tmp_path / "run.yaml"
    write_options(str(path), {"data": ["a", "b"], "sp_alpha": 0.5}, [])
    assert options("--options_file", path)["data"] == "a,b"
    with pytest.raises(TypeError):
        write_options(str(tmp_path / "other.yaml"), {"data": object()}, [])
    assert [each.name for each in tmp_path.iterdir()] == ["run.yaml"]
    with pytest.raises(InputError, match="cannot be written"):
        write_options(str(tmp_path / "missing" / "run.yaml"), {}, [])


def test_commands_that_pass_options_on(write):
    path = write("model: bert_2_64_2\nraw: true\ndata: c.txt\n")
    expanded = expand_options(["--options_file", path, "--lr", "1"])
    assert expanded == ["--model=bert_2_64_2", "--raw", "--data=c.txt", "--lr", "1"]

    def launch(path):
        command = "--tokens_per_gpu 8192 --launch hvd --hostfile hosts/local -- --options_file"
        return run_command([sys.executable, "hparams.py", *command.split(), path], cwd=ROOT)

    said = launch(path).check().stdout
    assert "--model=bert_2_64_2 --raw --data=c.txt" in said
    assert "bert_24_1024_16" not in said and "${DATA" not in said and "--options_file" not in said
    result = launch(write("num_steps: 3\n"))
    assert result.returncode == 2 and "--num_steps after --" in result.stderr
    result = launch(write("num_step: 3\n"))
    assert result.returncode == 2 and "num_steps?" in result.stderr and result.stderr.count("\n") == 1


def test_a_script_rejects_a_bad_file_before_anything(write, tmp_path):
    path = write(f"data: x\nckpt_dir: {tmp_path}/new\nlr: no\n")
    result = run_command([sys.executable, ROOT / "run_pretraining_hvd.py", "--options_file", path])
    assert result.returncode == 2 and result.stdout == "" and result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"error: --options_file {path}, line 3: ")
    assert not (tmp_path / "new").exists()
