"""Golden results: digests of parameters, states and metrics of real runs.

    python -m tests.golden before.json        # before a change that should not alter results
    python -m tests.golden before.json        # after it: names what differs, and exits with 1

Two Horovod ranks pretrain 60 steps in both stages with dropout and accumulation; the same run is resumed from
its 30th step, and trained as a pipeline of two stages; SQuAD and a classification are fine-tuned from its
weights. Times are left out of the metrics. Digests hold for one machine and one set of packages.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.faults.jobs import metrics
from tests.processes import run_command

MPIRUN = "mpirun -np 2 --oversubscribe --bind-to none -mca mpi_yield_when_idle 1"
MPI_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
PRETRAIN = """run_pretraining_hvd.py --raw --data {0}/corpus/train-*.txt --data_eval {0}/corpus/eval.txt
    --vocab {0}/vocab.txt --model bert_2_64_2 --dropout 0.1 --stages both --max_seq_length 32,64
    --batch_size 256,256 --accumulate 2 --num_steps 40,20 --lr 0.01 --warmup_ratio 0.1 --log_interval 10
    --ckpt_interval 15 --keep_checkpoints 9 --seed 5 --ckpt_dir {1}"""
QUESTIONS = """-m data.questions.cloze --input {0}/corpus/train-*.txt --dev_input {0}/corpus/eval.txt
    --train_questions 400 --dev_questions 60 --unanswerable 0.2 --per_sentence 20 --answer_words 1
    --sentences 1 --context_words 10 --question_words 10 --output {1}"""
FINETUNE = "--init_from {0}/whole --num_steps 20 --ckpt_interval 10 --log_interval 5"
SQUAD = f"""finetune_squad.py {FINETUNE} --version_2 --train_file {{0}}/questions/train.json
    --dev_file {{0}}/questions/dev.json --max_seq_length 64 --max_query_length 32 --doc_stride 32
    --batch_size 4 --ckpt_dir {{0}}/squad"""
CLASSIFIER = f"""finetune_classifier.py {FINETUNE} --train_file {{0}}/pairs/train.tsv
    --dev_file {{0}}/pairs/dev.tsv --batch_size 8 --ckpt_dir {{0}}/classifier"""


def python(words: str, launcher: str = "") -> None:
    run_command([*launcher.split(), sys.executable, *words.split()], env=MPI_ENV).check()


def run_all(place: Path) -> None:
    text, whole, resumed = place / "text", place / "whole", place / "resumed"
    python(f"-m data.embedded --output {text}")
    python(PRETRAIN.format(text, whole), MPIRUN)
    resumed.mkdir()
    for path in whole.glob("0000030.*"):
        shutil.copy(path, resumed)
    python(PRETRAIN.format(text, resumed) + " --resume", MPIRUN)
    python(PRETRAIN.format(text, place / "pipeline") + " --pipeline_stages 2", MPIRUN)
    python(QUESTIONS.format(text, place / "questions"))
    python(f"-m data.classification.embedded --corpus {text}/corpus --output {place}/pairs")
    python(SQUAD.format(place), MPIRUN)
    python(CLASSIFIER.format(place))


def digests(place: Path) -> dict[str, str]:
    """sha256 of every file of parameters and states, and of the lines of metrics without times."""
    found = {}
    for path in sorted([*place.glob("*/*.params"), *place.glob("*/*.states.npz")]):
        found[str(path.relative_to(place))] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(place.glob("*/metrics.jsonl")):
        kept = json.dumps(metrics(path.parent))
        found[str(path.relative_to(place))] = hashlib.sha256(kept.encode()).hexdigest()
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
