"""Golden results: digests of parameters, states and metrics of real runs.

    python -m tests.golden before.json        # before a change that should not alter results
    python -m tests.golden before.json        # after it: names what differs, and exits with 1

Two Horovod ranks pretrain 60 steps in both stages with dropout and accumulation; the same run is resumed from its
30th step; a model of two layers on two ranks is a pipeline; SQuAD and a classification are fine-tuned from its
weights. Times are left out of the metrics. Digests hold for one machine and one set of packages.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.processes import run_command

MPIRUN = ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none", "-mca", "mpi_yield_when_idle", "1"]
MPI_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
TIMES = ("time", "_s", "per_second", "mfu", "rss", "memory", "utilisation")


def pretrain(place: Path, checkpoints: Path, *more: str) -> None:
    corpus = place / "text/corpus"
    words = [
        "--raw", "--data", f"{corpus}/train-*.txt", "--data_eval", f"{corpus}/eval.txt",
        "--vocab", f"{place}/text/vocab.txt", "--model", "bert_2_64_2", "--dropout", "0.1",
        "--stages", "both", "--max_seq_length", "32,64", "--batch_size", "256,256", "--accumulate", "2",
        "--num_steps", "40,20", "--lr", "0.01", "--warmup_ratio", "0.1", "--log_interval", "10",
        "--ckpt_interval", "15", "--keep_checkpoints", "9", "--seed", "5", "--ckpt_dir", str(checkpoints), *more,
    ]  # fmt: skip
    python([*MPIRUN, sys.executable, "run_pretraining_hvd.py", *words])


def python(words: list[str]) -> None:
    run_command(words, env=MPI_ENV).check()


def run_all(place: Path) -> None:
    python([sys.executable, "-m", "data.embedded", "--output", f"{place}/text"])
    whole = place / "whole"
    pretrain(place, whole)
    resumed = place / "resumed"
    resumed.mkdir()
    for path in whole.glob("0000030.*"):
        shutil.copy(path, resumed)
    pretrain(place, resumed, "--resume")
    pretrain(place, place / "pipeline", "--pipeline_stages", "2")
    questions, pairs = place / "questions", place / "pairs"
    cloze = "--train_questions 400 --dev_questions 60 --unanswerable 0.2 --per_sentence 20 --answer_words 1"
    shape = "--sentences 1 --context_words 10 --question_words 10".split()
    text = ["--input", f"{place}/text/corpus/train-*.txt", "--dev_input", f"{place}/text/corpus/eval.txt"]
    python(
        [
            sys.executable,
            "-m",
            "data.questions.cloze",
            "--output",
            str(questions),
            *text,
            *cloze.split(),
            *shape,
        ]
    )
    python(
        [
            sys.executable,
            "-m",
            "data.classification.embedded",
            "--corpus",
            f"{place}/text/corpus",
            "--output",
            str(pairs),
        ]
    )
    common = ["--init_from", str(whole), "--num_steps", "20", "--ckpt_interval", "10", "--log_interval", "5"]
    squad = ["--version_2", "--train_file", f"{questions}/train.json", "--dev_file", f"{questions}/dev.json"]
    lengths = [
        "--max_seq_length",
        "64",
        "--max_query_length",
        "32",
        "--doc_stride",
        "32",
        "--batch_size",
        "4",
    ]
    python(
        [
            *MPIRUN,
            sys.executable,
            "finetune_squad.py",
            *common,
            *squad,
            *lengths,
            "--ckpt_dir",
            f"{place}/squad",
        ]
    )
    tables = ["--train_file", f"{pairs}/train.tsv", "--dev_file", f"{pairs}/dev.tsv", "--batch_size", "8"]
    python([sys.executable, "finetune_classifier.py", *common, *tables, "--ckpt_dir", f"{place}/classifier"])


def digests(place: Path) -> dict[str, str]:
    """sha256 of every file of parameters and states, and of the lines of metrics without times."""
    found = {}
    for path in sorted(place.glob("*/*.params")) + sorted(place.glob("*/*.states")):
        found[str(path.relative_to(place))] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(place.glob("*/metrics.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        kept = [{k: v for k, v in line.items() if not any(part in k for part in TIMES)} for line in lines]
        found[str(path.relative_to(place))] = hashlib.sha256(json.dumps(kept).encode()).hexdigest()
    return found


def main(path: Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        run_all(Path(folder))
        now = digests(Path(folder))
    if not path.exists():
        path.write_text(json.dumps(now, indent=1))
        print(f"{path}: {len(now)} digests")
        return 0
    before = json.loads(path.read_text())
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            print(f"{name} differs")
    print(f"{path}: {len(before)} digests, {'the same' if before == now else 'NOT the same'}")
    return int(before != now)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
