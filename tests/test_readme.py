"""The guides are true: their commands are run, shown output is compared, names are looked up.

Fenced blocks are `bash` (commands), `console` (lines that begin with `$ ` are commands, the others what they
print, which for hparams.py is compared exactly) or `text` (neither). Every command must be of a kind that is
tested below. A word `…` in a command stands for options of the reader's own.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable, Iterator, NamedTuple

import numpy as np
import pytest

import convert
import hparams
import lamb_paper
import predict
import score
from base.options import RANK
from tests.bert.weights.building import SMALL, WORDS, arrays, write
from tests.faults.bad_values import COMMANDS
from tests.hosts.manifests import objects, problems
from tests.processes import ROOT, RunResult, run_command, run_ranks
from training.checkpoint import save
from training.finetuning.options import NOT_HERE
from training.options import NOT_HERE as OF_GLUONNLP
from training.options import TABLE as OPTIONS
from training.options import TAKEN, parse_options

README = ROOT / "README.md"
GUIDES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOK = sorted((ROOT / "docs" / "notebook").glob("*.md"))  # of the past: only its links must hold
TRAINING_GUIDE, EXPERIMENTS = ROOT / "docs/training.md", ROOT / "docs/experiments.md"
FOLDERS = (
    *("base", "bench", "bert", "comm", "comparison", "data", "hosts", "native", "setup", "tasks", "training"),
    *("tests", "docs"),
)
README_LINES = 150
SCRIPT = "run_pretraining_hvd.py"
SCRIPTS = (SCRIPT, "run_pretraining_byteps.py")
FINETUNING = ("finetune_squad.py", "finetune_classifier.py")
DATA_COMMANDS = (
    *("data.prepare", "data.inspect", "data.train_vocab"),
    *("data.convert_npz", "data.build_corpus"),  # tests/data
    "data.classification.embedded",  # tests/data/classification/test_submission.py
    *("data.questions.cloze", "data.questions.score"),  # tests/data/questions
)
OWN_TEXT = "## Your own text"
LARGE_CORPUS = "## A large corpus"
CHECKPOINT_DIRECTORY = "## The checkpoint directory"
TREE = "## The files"
# What the own-text example is cut down to, so that it takes seconds; each must occur in it.
VOCABULARY = ("--vocab_size", "500")
SMALLER = shlex.split(
    "--model bert_1_32_2 --max_seq_length 32 --batch_size 256 "
    "--num_steps 6 --log_interval 3 --ckpt_interval 6"
)
# Folders of SageMaker's and of the image, which are the same on every machine.
IN_CONTAINERS = ("/opt/ml/", "/opt/bert", "/root/.ssh")
# Of mpirun, horovodrun, TensorBoard, rsync, sbatch and docker.
FOREIGN_OPTIONS = {
    *("--delete", "--signal", "--requeue", "--open-mode", "--shm-size"),
    *("--mpi", "--ntasks-per-node", "--batch", "--kill-on-bad-exit", "--gang-scheduling"),
    *("--nv", "--no-container-remap-root", "--network-interface", "--logdir"),
    *("--bind-to", "--output-filename", "--map-by", "--oversubscribe", "--prtemca", "--gloo"),
    # GluonNLP's, rejected with a reason that no --help has, or taken as others.
    *(f"--{name}" for name in [*NOT_HERE, *OF_GLUONNLP, *TAKEN]),
}


class Block(NamedTuple):
    guide: str
    line: int
    language: str
    text: str


def blocks(guide: Path) -> Iterator[Block]:
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", guide.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for match in found:
        line = match.string.count("\n", 0, match.start()) + 1
        yield Block(guide.name, line, match[1], match[2])


class Command(NamedTuple):
    """One command of a guide; `shown` is what it prints there, None where that is not shown."""

    text: str
    shown: str | None

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)


def commands(block: Block) -> list[Command]:
    found = []
    if block.language == "bash":
        lines = block.text.replace("\\\n", " ").splitlines()
        lines = [line for line in lines if line.strip() and not line.startswith("#")]
        found = [Command(" ".join(line.split()), None) for line in lines]
    elif block.language == "console":
        assert block.text.startswith("$ "), f"{block.guide}:{block.line} begins without a command"
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            text, _, shown = part.partition("\n")
            found.append(Command(text, shown))
    return found


def section(guide: Path, heading: str) -> str:
    """The text below a heading, up to the next one of its level or above."""
    text = guide.read_text("utf-8")
    assert f"\n{heading}\n" in text
    level = heading.index(" ")
    return re.split(rf"^#{{1,{level}}} ", text.split(f"\n{heading}\n", 1)[1], flags=re.MULTILINE)[0]


def blocks_of(guide: Path, heading: str) -> list[Block]:
    """The blocks below a heading of a guide."""
    text = section(guide, heading)
    return [block for block in blocks(guide) if f"```{block.language}\n{block.text}```" in text]


def prose(guide: Path) -> str:
    return re.sub(r"^```.*?^```$", "", guide.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def inline_code(guide: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(guide))


ALL = [command for guide in GUIDES for block in blocks(guide) for command in commands(block)]


def program(command: Command) -> str:
    """The script or module that a command is about, whatever launches it, or "make"."""
    words = command.words
    started = {*SCRIPTS, *FINETUNING} & set(words)
    if words[0] == "make" or started:
        return started.pop() if started else "make"
    return words[2] if words[1] == "-m" else words[1]


def of(*programs: str) -> list[Command]:
    """The commands about some programs."""
    return [command for command in ALL if program(command) in programs]


HPARAMS = of("hparams.py")


def each_of(*programs: str) -> pytest.MarkDecorator:
    """Runs a test for each command about some programs, once where guides repeat it."""
    found = {command.text: command for command in of(*programs)}
    return pytest.mark.parametrize("command", [*found.values()], ids=lambda command: command.text[:90])


def test_every_block_says_what_it_is():
    for guide in GUIDES:
        for block in blocks(guide):
            assert block.language in ("bash", "console", "text", "yaml"), f"{block.guide}:{block.line}"
        assert guide.read_text("utf-8").count("```") == 2 * len(list(blocks(guide)))
        assert not re.search(r"^\|[ :|-]+\|\n\n", prose(guide), re.MULTILINE), (
            f"{guide.name}: a table's head alone"
        )


def test_every_command_is_of_a_tested_kind():
    assert {program(command) for command in ALL} == {
        *("make", "hparams.py", "pytest", *SCRIPTS, *FINETUNING, *DATA_COMMANDS),
        "compare.py",  # tests/comparison
        "results.py",  # tests/training/results
        "training.profile",  # tests/training/profiling/test_profile.py
        *("convert.py", "predict.py", "score.py"),
        *("hosts/check.py", "hosts/kubernetes.py", "hosts/sagemaker.py", "hosts/slurm.py"),  # tests/hosts
    }
    for command in ALL:
        others = {"make", "hparams.py", *SCRIPTS, *FINETUNING}
        assert command.words[0] == ".venv/bin/python" or program(command) in others, command.text
        # Only hparams.py prints the same everywhere; a run is shown as an example.
        assert command.shown is None or command in HPARAMS or command.text == "make pretrain"


def here(main: Callable[[list[str]], int], command: Command, capsys) -> tuple[int, str, str]:
    """Exit code, standard output and error of a command `python SCRIPT ...`, in this process."""
    try:
        code = main(command.words[2:])
    except SystemExit as stop:  # argparse's own errors
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


def test_the_batch_script():
    (command,) = of("hosts/slurm.py")
    written = run_command([sys.executable, *command.words[1:]]).check().stdout
    assert run_command(["bash", "-n", "-c", written]).check().stdout == ""
    for line in ("#SBATCH --signal=B:USR1@300", "#SBATCH --requeue", "#SBATCH --open-mode=append"):
        assert line in written


def test_the_manifest(tmp_path):
    (command,) = of("hosts/kubernetes.py")
    documents = objects(*command.words[2:])
    assert [problems(each) for each in documents] == [[], []] and documents[1]["kind"] == "MPIJob"
    patches = [block for block in blocks(ROOT / "docs/kubernetes.md") if block.language == "yaml"]
    assert len(patches) == 2
    words = [{"hvd": "byteps"}.get(word, word) for word in command.words[2:]]
    for patch in patches:
        (tmp_path / "patch.yaml").write_text(patch.text, "utf-8")
        patched = objects("--patch", tmp_path / "patch.yaml", *words)
        assert [problems(each) for each in patched] == [[]] * 6


def test_the_call_to_sagemaker():
    (command,) = of("hosts/sagemaker.py")
    compile(run_command([sys.executable, *command.words[1:]]).check().stdout, "call.py", "exec")


@each_of("compare.py", "results.py", *FINETUNING)
def test_the_commands_of_long_runs(command):
    """Their options are understood. tests/comparison, tests/training/results and tests/test_finetune.py run
    such commands, cut down."""
    assert COMMANDS[program(command)](split_at_script(command)[1])


@pytest.mark.parametrize("command", HPARAMS, ids=lambda command: command.text[:90])
def test_hparams(command, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, out, err = here(hparams.main, command, capsys)
    said = out + err
    if command.shown is None:
        assert code == 0, said
    else:
        assert said.rstrip("\n") == command.shown.rstrip("\n")
        error = said.startswith("hparams.py: ")
        disagreement = "--check" in command.words and " times the paper's " in said
        assert code == (2 if error else 1 if disagreement else 0)
    if "--launch" in command.words and code == 0:  # what it prints is a command line of ours
        printed = [line for line in out.splitlines() if not line.startswith("#")]
        launches = "\n".join(printed).replace("\\\n", " ").strip().split("\n\n")
        byteps = "byteps" in command.words
        assert launches[0].startswith("python hosts/launch.py " if byteps else "mpirun ")
        for launch in launches[:: 2 if byteps else 1]:  # BytePS's every second block is for starting by hand
            words = shlex.split(launch)
            parse_options(words[words.index(SCRIPTS[byteps]) + 1 :], "")


def test_the_table_of_experiments():
    """Each computed figure is hparams.py's, and bold are the stated ones that differ from it."""
    text = EXPERIMENTS.read_text("utf-8")
    table = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*", text, re.M)
    ]
    assert [row[4].partition(" / ")[0].strip("*") for row in table[2:]] == ["2048", "2048", "256", "–"]
    assert [(row[0], row[2]) for row in table[2:]] == [
        *((n, "8192") for n in ("256", "32", "8")),
        ("32", "4096"),
    ]
    for gpus, _, tokens, accumulate, *pairs in table[2:]:
        stage = lamb_paper.stage_for_run(int(gpus), int(tokens), int(accumulate), 128)
        wanted = (stage.sequences_per_step, stage.num_steps, stage.lr, stage.warmup_ratio)
        for pair, value in zip(pairs, wanted):
            stated, computed = pair.split(" / ")
            assert computed == (f"{value:.5g}" if isinstance(value, float) else str(value))
            same = stated == "–" or float(stated.strip("*")) == value
            assert stated.startswith("**") != same, pair


def test_options_of_a_stage_and_of_a_rank():
    """The guides list all options of which each stage, or each rank, may have another value."""
    stages, ranks = (prose(ROOT / "docs" / name) for name in ("stages.md", "resuming.md"))
    named = [
        re.search(r"Two values can be given to (.*?); without", stages, re.DOTALL)[1],
        re.search(r"These may differ: (.*?) Everything else", ranks, re.DOTALL)[1],
    ]
    staged, own = (set(re.findall(r"`--(\w+)`", text)) for text in named)
    assert staged == {name for name, option in OPTIONS.items() if option.staged}
    assert own == {name for name, option in OPTIONS.items() if option.scope == RANK}


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_contents(guide):
    """A page that begins with links to its sections has all of them."""
    if listed := re.findall(r"^- \[(.*?)\]\(#", prose(guide), re.MULTILINE):
        assert listed == re.findall(r"^## (.*)", prose(guide), re.MULTILINE)


@each_of(*SCRIPTS)
def test_command_lines_of_the_script_parse(command, tmp_path, monkeypatch):
    before, options = split_at_script(command)
    if "--options_file" in options:  # the guide's own, under both names that its commands have for it
        monkeypatch.chdir(tmp_path)
        (tmp_path / "runs" / "own").mkdir(parents=True)
        (own,) = [block.text for block in blocks(TRAINING_GUIDE) if block.text.startswith("# own.yaml\n")]
        for name in ("own.yaml", "runs/own/run.yaml"):
            (tmp_path / name).write_text(own, "utf-8")
        assert parse_options(options, "").lr == 3e-3
    assert before[-1].endswith("python")
    if len(before) > 1:
        if "hosts/launch.py" in before:
            backend = "byteps" if SCRIPTS[1] in command.words else "hvd"
            assert before[1:5] == ["hosts/launch.py", "--backend", backend, "--hostfile"]
            assert before[-2] == "--" and (ROOT / before[5]).exists()
        else:
            assert before[0] in ("mpirun", ".venv/bin/horovodrun")
            assert int(before[before.index("-np") + 1]) >= 1
    if "…" in options:
        options = [*filter("…".__ne__, options), "--data", "x.txt"]
    assert parse_options(options, "").ckpt_dir


def split_at_script(command: Command) -> tuple[list[str], list[str]]:
    at = command.words.index(program(command))
    return command.words[:at], command.words[at + 1 :]


def test_make_targets():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = [command.text for command in of("make")]
    named += [code for guide in GUIDES for code in inline_code(guide) if code.startswith("make ")]
    assert {"make pretrain", "make test"} <= set(named)
    for text in named:
        for word in shlex.split(text)[1:]:
            name, is_variable, _ = word.partition("=")
            assert name in (makefile if is_variable else targets), text
        if shutil.which("make"):  # what it would do, without doing it
            run_command([*shlex.split(text), "--dry-run"]).check()


def test_the_readme_is_short():
    lines = README.read_text("utf-8").splitlines()
    assert len(lines) <= README_LINES
    first = "\n".join(lines[:30])
    assert "make pretrain\nmake test\n" in first and "**Never run:**" in first


def test_a_run_is_shown():
    (block,) = blocks_of(TRAINING_GUIDE, "## The output of a run")
    (excerpt,) = blocks_of(README, "## A run")
    shown = iter(block.text.splitlines())  # the README's lines are among them, in their order
    assert [line for line in excerpt.text.splitlines() if line != "..." and line not in shown] == []
    assert "checkpoint runs/embedded/ckpt/" in block.text and "unigram entropy" in block.text
    # As tasks.pretraining.task says it, of the figures shown above it.
    least = r"has an MLM loss of at least (\S+) nats on the held-out text, of"
    floor = float(re.findall(least, block.text)[-1])
    evaluation = r"^stage 2, evaluation at step \d+: mlm_loss (\S+) .* context gain (\S+) ± (\S+) nats"
    loss, gain, error = map(float, re.findall(evaluation, block.text, re.MULTILINE)[-1])
    said = re.findall(r"^The held-out MLM loss, (.*)\.$", block.text, re.MULTILINE)[-1]
    numbers = re.fullmatch(r"(\S+), is (\S+) (below|above) the least \(two standard errors: (\S+)\)", said)
    assert float(numbers[1]) == loss and float(numbers[2]) == pytest.approx(abs(floor - loss), abs=0.0011)
    assert numbers[3] == "below" and floor - loss > float(numbers[4]), "what the README promises"
    assert f"cost {loss + gain:.2f}" in re.sub(r"(\.\d\d)\d", r"\1", block.text) and gain > 2 * error
    last = block.text.rstrip().splitlines()[-1]
    assert last.startswith("your own: .venv/bin/python predict.py runs/embedded")


class OwnText(NamedTuple):
    directory: Path
    result: RunResult


@pytest.fixture(scope="module")
def own_text(tmp_path_factory, corpus) -> OwnText:
    """The commands of the own-text section, in their order, on a small part of the embedded corpus."""
    directory = tmp_path_factory.mktemp("own")
    (directory / "corpus").mkdir()
    for name in ("train-0.txt", "train-1.txt", "eval.txt"):
        text = Path(corpus.train).with_name(name).read_text("utf-8")
        documents = [document for document in text.split("\n\n") if len(document) < 10_000]
        (directory / "corpus" / name).write_text("\n\n".join(documents[:12]) + "\n", "utf-8")

    block = next(block for block in blocks_of(README, OWN_TEXT) if block.language == "bash")
    mine = commands(block)
    assert [command.words[0] for command in mine] == ["make", ".venv/bin/python", "mpirun"]
    _, vocabulary, training = mine
    before, options = split_at_script(training)
    assert VOCABULARY[0] in vocabulary.words and {*SMALLER[::2]} <= {*options}, "they are gone"
    run_command([sys.executable, *vocabulary.words[1:], *VOCABULARY], cwd=directory).check()
    ranks = int(before[before.index("-np") + 1])
    result = run_ranks(ROOT / SCRIPT, ranks, args=[*options, *SMALLER], cwd=directory).check()
    return OwnText(directory, result)


def test_own_text(own_text):
    run = own_text.directory / "runs" / "own"
    assert (own_text.directory / "vocab.txt").read_text("utf-8").count("\n") == int(VOCABULARY[1])
    assert "2 processes on cpu" in own_text.result.ranks[0].stdout
    assert "warning" not in own_text.result.ranks[0].stderr
    assert (run / "0000006.params").exists()


def test_the_commands_that_convert(tmp_path, monkeypatch, capsys):
    """One after the other, on the weights of a small BERT under the names of the guide."""
    monkeypatch.chdir(tmp_path)
    named = arrays()
    save("runs/embedded/ckpt", 900, named, {"state": np.ones(3)}, SMALL.facts())
    write(tmp_path / "ours" / "model.params", named)
    Path("ours/vocab.txt").write_text("".join(f"{word}\n" for word in WORDS), "utf-8")
    google = "uncased_L-12_H-768_A-12"
    for target, to in ((google, "tensorflow"), ("bert-base-uncased", "huggingface")):
        assert convert.main(["ours", target, "--to", to, "--model", SMALL.name]) == 0
    converting = of("convert.py")
    assert len(converting) > 4
    for command in converting:
        output = command.words[3]
        code, out, err = here(convert.main, command, capsys)
        assert code == 0, err
        assert f'"output": "{output}"' in out or f"\n{output}: bert_2_64_2" in f"\n{out}"


@pytest.fixture
def learned(own_text, monkeypatch):
    """The folder of the own-text example, and its commands in this process, which has imported MXNet."""
    monkeypatch.chdir(own_text.directory)
    for script in ("predict", "score"):
        monkeypatch.setattr(f"{script}.set_threads", lambda: None)


@each_of("predict.py")
def test_what_the_run_has_learned(learned, command, capsys):
    Path("sentences.txt").write_text("It opens the file .\nIt is\tThe file is open .\n")
    code, shown, err = here(predict.main, command, capsys)
    assert code == 0, err
    if "--embed" in command.words:
        output = command.words[command.words.index("--output") + 1]
        assert f"{output}: 2 vectors of 32 numbers" in shown and Path(output).exists()
    elif "--json" in command.words:
        assert 0 < json.loads(shown)["next_sentence"] < 1
    else:
        assert shown.count("%") == 5 * command.text.count("[MASK]")


@each_of("score.py")
def test_the_commands_that_judge_pairs(learned, command, capsys):
    rows = ["sentence_good\tsentence_bad\tUID\tterm", "It opens a file .\tIt open a file .\tagree\tverbs"]
    packed = gzip.compress("\n".join([*rows, rows[1]]).encode())
    Path("blimp/data").mkdir(parents=True, exist_ok=True)
    for name in ("blimp/data/agree.tsv.gz", "pairs.tsv.gz"):
        Path(name).write_bytes(packed)
    code, shown, err = here(score.main, command, capsys)
    assert code == 0 and "mean of 1 groups: " in shown, err
    for name in filter(re.compile(r"\.(json|png)$").search, command.words):
        assert Path(name).stat().st_size > 500


def test_the_files_of_a_run(own_text):
    """Those that the guide lists, but for what an option brings that this run does not have."""
    table = section(TRAINING_GUIDE, CHECKPOINT_DIRECTORY)
    rows = re.findall(r"^\| (`.*?) \| (?!with `--)", table.split("| field |")[0], re.MULTILINE)
    named = {name.replace("0002000", "0000006").rstrip("/") for row in rows for name in code_in(row)}
    there = {path.name for path in (own_text.directory / "runs" / "own").iterdir()}
    assert named == there


def test_the_fields_of_metrics(own_text):
    table = section(TRAINING_GUIDE, CHECKPOINT_DIRECTORY).split("| field |")[1]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in code_in(row)}
    lines = (own_text.directory / "runs" / "own" / "metrics.jsonl").read_text("utf-8").splitlines()
    assert named - {"resumed_at"} == {name for line in lines for name in json.loads(line)}


def code_in(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_a_large_corpus(own_text):
    """The three commands in their order, on the text of the own-text example; the run is cut down, to one
    process too."""
    (block,) = blocks_of(TRAINING_GUIDE, LARGE_CORPUS)
    prepare, inspect, training = commands(block)
    prepared = run_command([sys.executable, *prepare.words[1:]], cwd=own_text.directory).check()
    assert "tokens" in prepared.stdout
    run_command([sys.executable, *inspect.words[1:]], cwd=own_text.directory).check()
    assert (own_text.directory / "lengths.png").read_bytes().startswith(b"\x89PNG")
    _, given = split_at_script(training)
    cut_down = ["--model", "bert_1_32_2", "--num_steps", "2", "--log_interval", "1"]
    run_command([sys.executable, ROOT / SCRIPT, *given, *cut_down], cwd=own_text.directory).check()
    assert (own_text.directory / "runs" / "store" / "0000002.params").exists()


def test_options_of_the_data_commands_exist(helps_of):
    for command in of(*DATA_COMMANDS):
        for word in command.words[3:]:
            if word.startswith("--"):
                assert re.search(rf"{word}\b(?!-)", helps_of[program(command)]), command.text


def tree_entries() -> list[str]:
    """The names of the file tree, all of them at the root."""
    (block,) = blocks_of(README, TREE)
    entries = []
    for line in block.text.splitlines():
        names, phrase = re.fullmatch(r"([^\s,]+(?:, [^\s,]+)*) {2,}(\S.*)", line).groups()
        assert len(phrase.split()) > 1, f"no phrase: {line}"
        entries += names.split(", ")
    return entries


def test_the_file_tree_is_the_real_one():
    """Files and folders; the modules of a package are in its docstring, see tests/test_imports.py."""
    entries = tree_entries()
    assert len(entries) == len(set(entries))
    git = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(git, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: which files belong to the project is not known")
    names = [name for name in listed.decode().splitlines() if (ROOT / name).exists()]
    top = {name.partition("/")[0] + ("/" if "/" in name else "") for name in names}
    assert top == {*entries, "README.md", ".gitignore"}


def linked_from(*pages: Path) -> set[Path]:
    links = ((page.parent, link) for page in pages for link in re.findall(r"\]\(([^)#\s]+)", prose(page)))
    return {(folder / link).resolve() for folder, link in links}


def test_every_page_is_found():
    """Guides from the README, those of the notebook from any page."""
    assert {*GUIDES} - {README} <= linked_from(README)
    assert NOTEBOOK and {*NOTEBOOK} <= linked_from(*GUIDES, *NOTEBOOK)


@pytest.mark.parametrize("guide", [*GUIDES, *NOTEBOOK], ids=lambda guide: guide.name)
def test_links(guide):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(guide)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (guide.parent / path).resolve() if path else guide
        assert linked.is_file(), f"{guide.name}: {target}"
        assert not anchor or anchor in anchors(linked), f"{guide.name}: {target}"


def anchors(guide: Path) -> set[str]:
    """GitHub's: lower case, without punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.*)$", prose(guide), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_files_named_in_the_text_exist(guide):
    pattern = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./-]*|[\w-]+\.(?:py|md|toml)")
    for code in inline_code(guide):
        if pattern.fullmatch(code) and "<" not in code:
            assert (ROOT / code).exists(), f"{guide.name}: {code}"


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_options_named_in_the_text_exist(guide, helps):
    for code in inline_code(guide):
        for option in re.findall(r"(?<![\w-])--[a-z]\w*(?:-\w+)*", code):
            known = option in FOREIGN_OPTIONS or re.search(rf"{option}\b(?!-)", helps)
            assert known, f"{guide.name}: {option}"


def help_of(name: str) -> str:
    """The help of a script or module, in this process where it is one of the commands."""
    if name not in COMMANDS:
        return run_command([sys.executable, "-m", name, "--help"]).check().stdout
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        COMMANDS[name](["--help"])
    text = out.buffer.getvalue().decode("utf-8")
    assert "--help" in text, name
    return text


@pytest.fixture(scope="module")
def helps_of() -> dict[str, str]:
    """The help of each command that the guides may name an option of."""
    return {name: help_of(name) for name in [*COMMANDS, "tests.faults", "tests.pipeline_hosts"]}


@pytest.fixture(scope="module")
def helps(helps_of) -> str:
    """The help of all commands, as one text."""
    return "".join(helps_of.values())


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_no_path_of_one_machine(guide):
    text = guide.read_text("utf-8")
    found = re.findall(r"(?<![\w.~/-])/(?:work|root|home|tmp|opt|mnt|srv|Users|shared)\b[^\s`:]*", text)
    assert not [path for path in found if not path.startswith(IN_CONTAINERS)]
