"""Hostile inputs that are no arrays: text, vocabularies, configurations, options, host files, manifests,
results, questions, tables, and environment variables, through the readers that a run has.

    python -m tests.faults.hostile KIND SEED COUNT FOLDER [commands]      # a JSON object with what happened

Sound content is damaged in random places, with what readers stumble over: nesting, digits, bytes that are no
text, pipes and devices in the place of a file, and programs as YAML, pickle and shell have them. What comes
of it is content or an InputError of one line; anything else, an input that takes over 5 seconds, and a
program that was executed end this process, whose memory is limited, with a traceback. With `commands` it is
the command of `COMMANDS` that reads them.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import hashlib
import io
import json
import os
import random
import resource
import signal
import sys
from pathlib import Path
from typing import Any, Callable, NamedTuple

import results
from base.errors import InputError
from base.launchers import hosts_of_run, launched_rank, local_size
from base.threads import choose_threads
from bert.config_file import read_config_file
from comm.byteps.environment import complete_environment, read_place
from data.classification.examples import Table
from data.options import TextConfig
from data.questions.squad_files import read_questions
from data.text.corpus import sentences
from data.tokenizing.vocab import SPECIAL_TOKENS, load_vocab
from hosts.hostfile import read_hostfile, read_spares
from tests.faults.figure import ONCE, Damage, Parts, Program, Setting, Tally, endless, named
from tests.faults.jobs import python
from tests.processes import ROOT, run_command
from training import checkpoint
from training.options_file import read_options
from training.results.record import RESULTS_FILE

MEMORY = 3 << 30  # bytes of address space
SECONDS = 60
CANARY = "executed"
_RUN = f"import os; os.close(os.open({CANARY!r}, os.O_CREAT))"
PROGRAMS = [
    f"!!python/object/apply:os.system ['touch {CANARY}']",
    f'!!python/object/apply:exec ["{_RUN}"]',
    f"cposix\nsystem\n(S'touch {CANARY}'\ntR.",
    f"$(touch {CANARY})",
    f"`touch {CANARY}`",
    f"; touch {CANARY} #",
    f"__import__('os').system('touch {CANARY}')",
]
NASTY = [
    *PROGRAMS, "\0", "\r", "\n\n", "\ufeff", "\u2028", "²", "٣", "\x1b[2J", "%s%n", "../" * 40 + "etc/passwd",
    "9" * 30, "9" * 5_000, "-1", "1e999", "NaN", "true", "null", "[]", "{}", "[" * 50_000, '{"a":' * 50_000,
    "&a [*a]", "slots=0", "slots=" + "9" * 5_000, "x" * 70_000, "\\ud800", '"', "'", ",", "\t", "=", "#",
]  # fmt: skip


VALUES = [
    None, True, 0, -1, 2**31, 2**62, 10**400, 0.5, -1e300, float("nan"), float("inf"), "", "x", "1", "\ud800",
    "x" * 9_000, [], [1], [[]], {}, {"x": 1}, [None], *PROGRAMS,
]  # fmt: skip


class Kind(NamedTuple):
    """A sound input and its readers."""

    name: str
    sound: bytes
    read: Callable[[str], Any]


def damaged(sound: bytes, draw: random.Random) -> bytes:
    """A few random changes: of bytes, or of JSON's values."""
    if sound.startswith(b"{") and draw.randrange(2):
        content_of = json.loads(sound)
        for _ in range(draw.randint(1, 2)):
            _change(content_of, draw)
        return json.dumps(content_of).encode()
    content = bytearray(sound)
    for _ in range(draw.randint(1, 4)):
        place = draw.randint(0, len(content))
        what = draw.randrange(6)
        if what == 0 and content:
            content[place % len(content)] ^= 1 << draw.randrange(8)
        elif what == 1:
            del content[place:]
        elif what == 2:
            content[place:place] = content[draw.randint(0, place) : place]
        elif what == 3:
            content[place:place] = bytes(draw.randrange(256) for _ in range(9))
        else:
            replaced = draw.choice((0, 0, 1, 8))
            content[place : place + replaced] = draw.choice(NASTY).encode()
    return bytes(content)


def _change(value: Any, draw: random.Random) -> None:
    """Gives one of an object's or a list's values, however deep, another."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(value[key], (dict, list)) and draw.randrange(3):
            value = value[key]
            continue
        if draw.randrange(8):
            value[key] = copy.deepcopy(draw.choice(VALUES))  # changed later, perhaps
        else:
            del value[key]
        return


def special(path: Path, draw: random.Random) -> None:
    """Something that is no regular file."""
    draw.choice(
        [
            lambda: os.mkfifo(path),
            path.mkdir,
            lambda: path.symlink_to("/dev/zero"),
            lambda: path.symlink_to("/dev/tty"),
            lambda: path.symlink_to(path),
            lambda: None,  # missing
        ]
    )()


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    elif os.path.lexists(path):
        path.unlink()


def _signed(content: bytes) -> bytes:
    """A manifest with a checksum that is right, where it is an object at all."""
    try:
        manifest = json.loads(content)
        manifest.pop("sha256", None)
        checksum = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
        return json.dumps({**manifest, "sha256": checksum}).encode()
    except (ValueError, AttributeError, RecursionError, TypeError):
        return content


def _read_manifest(path: str) -> Any:
    folder = os.path.dirname(path)
    if os.path.isfile(path) and not os.path.islink(path):
        Path(path).write_bytes(_signed(Path(path).read_bytes()))
    checkpoint.newest_complete(folder, lambda message: None)
    return checkpoint.read_manifest(folder, 3)


def _read_text(path: str) -> Any:
    messages: list[str] = []
    for text_format in ("auto", "lines", "wikitext"):
        settings = TextConfig(text_format, False, skip_bad_records=True)
        collections.deque(sentences([path], settings, messages.append), maxlen=0)
    return list(sentences([path], TextConfig("auto", True, False)))


def _read_result(path: str) -> Any:
    """As results.py reads them, with its tables."""
    with contextlib.redirect_stdout(io.StringIO()):
        results.main([os.path.dirname(path)])


_ENVIRONMENT = {
    "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2",
    "DMLC_WORKER_ID": "1", "DMLC_NUM_SERVER": "1", "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000", "BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": "1",
    "BYTEPS_GLOBAL_RANK": "1", "OMP_NUM_THREADS": "2,1",
    "RANKS_ON_HOST": "2", "RUN_HOSTS": "alpha:1,beta:2",
}  # fmt: skip


def _read_environment(path: str) -> Any:
    """Variables, one a line; the system allows no NUL in them."""
    content = Path(path).read_bytes().replace(b"\0", b"") if os.path.isfile(path) else b""
    lines = (line.partition("=") for line in os.fsdecode(content).split("\n"))
    environ = {name: value for name, _, value in lines if name}
    launched_rank(environ), hosts_of_run(environ)
    choose_threads(environ, 2, 2, local_size(environ))
    complete_environment(environ)
    read_place(environ)


_SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "t",
            "paragraphs": [
                {
                    "context": "The cat sat.",
                    "qas": [{"id": "1", "question": "Who?", "answers": [{"text": "cat", "answer_start": 4}]}],
                }
            ],
        }
    ],
}
_MANIFEST = {
    "format": 1, "step": 3, "model": "bert_1_32_2", "vocab_size": 60, "stage": None, "begun": 0,
    "num_steps": 9, "world_size": 1, "processes": 1, "options": {"accumulate": 1},
    "scaler": {"kind": "static", "scale": 1.0}, "skips": {"in_a_row": 0, "total": 0}, "seed": 1,
    "blocks": 5, "training_s": 1.5,
    "bert": {"layers": 1, "units": 32, "heads": 2, "hidden": 128},
    "files": {each: {"size": 1, "sha256": "0" * 64} for each in (".params", ".states.npz")},
}  # fmt: skip
_RESULT = {
    "format": 1, "task": "pretraining", "model": "bert_1_32_2", "status": "finished",
    "backend": "local", "world_size": 1, "hosts": 1,
    "device": "cpu", "dtype": "float32", "steps": 5, "scores": {"mlm_loss": 5.5}, "speed": {"train_s": 1.5},
}  # fmt: skip
_CONFIG = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "vocab_size": 40, "max_position_embeddings": 16, "type_vocab_size": 2, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02,
    "layer_norm_eps": 1e-12, "tie_word_embeddings": True,
}  # fmt: skip


def _of(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()


KINDS = {
    kind.name: kind
    for kind in (
        Kind("text", "One sentence.\nAnother, café.\n\nAnd one more.\n\n".encode() * 3, _read_text),
        Kind("vocabulary", "\n".join([*SPECIAL_TOKENS, "the", "##s", "é"]).encode(), load_vocab),
        Kind("configuration", _of(_CONFIG), lambda path: read_config_file(path, "--config_file")),
        Kind(
            "options",
            b"# own\nraw: true\ndata: [a.txt, b.txt]\nlr: 1e-3\nmodel: bert_1_32_2\n",
            lambda path: read_options(path, {"raw": False, "data": None, "lr": None, "model": None}),
        ),
        Kind(
            "hosts",
            b"node-1 slots=8\nnode-2 slots=8 max-slots=9 # two\n# spare: node-3 slots=8\n",
            lambda path: (read_hostfile(path), read_spares(path)),
        ),
        Kind("manifest", _signed(_of(_MANIFEST)), _read_manifest),
        Kind("results", _of(_RESULT), _read_result),
        Kind("questions", _of(_SQUAD), lambda path: read_questions(path, "--train_file")),
        Kind(
            "table",
            b'sentence\tlabel\nA good one.\t1\n"A bad one"\t0\n',
            lambda path: list(Table(path, "--train_file").lines()),
        ),
        Kind(
            "environment",
            "\n".join(f"{name}={value}" for name, value in _ENVIRONMENT.items()).encode(),
            _read_environment,
        ),
    )
}
NAMES = {"manifest": "0000003.json", "results": RESULTS_FILE}  # of files whose readers know them; others: any


_MODEL = ("run_pretraining_hvd.py", "--dummy_data_len", "16", "--estimate")
COMMANDS = {  # what a user types; "@" is the input, "@/" its folder
    "configuration": (*_MODEL, "--config_file", "@"),
    "options": (*_MODEL, "--options_file", "@"),
    "hosts": ("hosts/launch.py", "--hostfile", "@", "--", "no_such_script.py"),
    "results": ("results.py", "@/"),
    "vocabulary": ("run_pretraining_hvd.py", "--estimate", "--raw", "--data", "no.txt", "--vocab", "@"),
    "text": ("-m", "data.train_vocab", "--input", "@", "--output", "@.vocab", "--vocab_size", "120"),
}


def hold_command(kind: Kind, path: Path) -> str:
    """Outcome of the command that reads an input. AssertionError for another end than those in order."""
    words = [word.replace("@/", str(path.parent)).replace("@", str(path)) for word in COMMANDS[kind.name]]
    words[0] = words[0] if words[0] == "-m" else str(ROOT / words[0])
    done = run_command([sys.executable, *words], cwd=ROOT)
    lines = done.stderr.splitlines()
    assert done.returncode in (0, 2) and "Traceback" not in done.stderr, done.describe()
    assert done.returncode == 0 or len(lines) == 1, done.describe()
    return "rejected" if done.returncode else "read"


def hold(kind: Kind, path: Path) -> str:
    """Outcome of reading an input. AssertionError for an error that is no line."""
    try:
        kind.read(str(path))
    except InputError as error:
        text = str(error)
        assert text and len(text.splitlines()) == 1 and len(text) < 4_000, text[:500]
        return "rejected"
    return "read"


def main(name: str, seed: str, count: str, folder: str, how: str = "readers") -> None:
    """Tries `count` inputs; see the module. `how`: readers or commands."""
    by_command = how == "commands"
    if not by_command:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    kind, place = KINDS[name], Path(folder) / "files"
    place.mkdir(exist_ok=True)
    path = place / NAMES.get(name, "input.txt")
    os.chdir(place)
    path.write_bytes(kind.sound)
    assert hold(kind, path) == "read" or name == "manifest", "the sound input is rejected"
    outcomes: collections.Counter[str] = collections.Counter()
    for number in range(int(count)):
        draw = random.Random(f"{name} {seed} {number}")
        _clear(path)
        if draw.randrange(20):
            path.write_bytes(damaged(kind.sound, draw))
        else:
            special(path, draw)
        print("reading", number, flush=True)
        signal.alarm(0 if by_command else SECONDS)
        outcomes[(hold_command if by_command else hold)(kind, path)] += 1
        signal.alarm(0)
        assert not (place / CANARY).exists(), "a program in the input was executed"
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])


# --- The figure.


OF_INSTANCES = ("npz", "tfrecord", "ofrecord", "random")
OF_WEIGHTS = ("safetensors", "bundle", "pickled", "params")
COUNT = 150  # of instances' files; rounds of weights', which have several files
FEW = 10  # through commands, which have to be started
WORKERS = {
    **dict.fromkeys(OF_INSTANCES, "tests.data.formats.fuzz_worker"),
    **dict.fromkeys(OF_WEIGHTS, "tests.bert.weights.fuzz_worker"),
    **dict.fromkeys(KINDS, "tests.faults.hostile"),
}
DAMAGED = """
import runpy, sys
{patch}
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""


def attempt(setting: Setting, parts: Parts) -> Tally:
    """Many files of a format."""
    kind, folder = parts["kind"], setting.folder("files")
    first = [0] if kind in OF_INSTANCES else []
    start = ["-c", DAMAGED.format(patch=setting.patch)] if setting.damage else ["-m"]
    through = [FEW, folder, "commands"] if "by" in parts else [COUNT, folder]
    words = python(*start, WORKERS[kind], kind, parts["seed"], *first, *through)
    result = run_command(words, timeout=300, env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
    if result.returncode:  # a worker ends at the first
        return Tally.of(result.describe(1500))
    return Tally.of(tried=sum(json.loads(result.stdout.splitlines()[-1]).values()))


PROGRAM = Program(
    "5a",
    "hostile instances, weights, text, checkpoints, configurations, host files, variables",
    "5,000: no hang, no traceback, no byte executed",
    weight=0.4,
    seconds=8,
    backends=(ONCE,),
    cases=endless(
        *({"kind": kind} for kind in WORKERS), *({"kind": kind, "by": "commands"} for kind in COMMANDS)
    ),
    attempt=attempt,
    damages={
        "errors have several lines": Damage(
            named(kind="npz", seed=1),
            "AssertionError",
            """
import base.errors
base.errors.InputError.__str__ = lambda self: "a line\\nanother one"
""",
        ),
        "pickles are executed": Damage(
            named(kind="pickled", seed=1),
            "Error",
            """
import pickle
from bert.weights import pickled
pickled.read_index = lambda path: pickle.loads(open(path, "rb").read())
""",
        ),
    },
    note="options: 10; strangers' messages: 5b",
)
