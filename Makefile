# make            lists the targets
# Every target but help and clean sets up first what is missing; see setup/ for how.

SHELL := /bin/bash
.SHELLFLAGS := -e -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup pretrain corpus finetune from-pretrained from-random compare test reliability bench check check-gpu format
.PHONY: clean pins

BACKEND ?= hvd
PYTHON ?=
CUDA ?=
SLOW ?= 1
# Those with a peer; by name also `pretraining` (10 minutes), `latency` (3) and `startup`.
BENCH ?= step finetune loader tokenize_text questions
ARGS ?=
PY := .venv/bin/python

# The packages that mypy reads. What MXNet returns counts as Any.
TYPED := base comm setup hosts data bert tasks training bench comparison $(wildcard *.py)

# Open MPI refuses to run as root unless told twice.
MPI_ENV := $(if $(filter 0,$(shell id -u)),OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
NP ?= 2
# For two processes Open MPI would bind each to one core. Where processes are as many as cores, one that waits for
# the others must not keep a core from them: by default Open MPI spins. After Ctrl-C they have 5 s to save, not 1.
MPIRUN := $(MPI_ENV) mpirun -np $(NP) --oversubscribe --bind-to none -mca mpi_yield_when_idle 1 \
	-mca odls_base_sigkill_timeout 5

# Two workers of one rank each, a server and a scheduler.
BYTEPS := $(PY) hosts/launch.py --backend byteps --hostfile hosts/2x_local --

ifneq ($(words $(filter hvd byteps,$(BACKEND))) $(words $(BACKEND)),1 1)
$(error BACKEND=$(BACKEND): choose hvd (Horovod) or byteps (BytePS))
endif
ifeq ($(BACKEND) $(origin NP),byteps command line)
$(error NP=$(NP): is for BACKEND=hvd; hosts/2x_local has the workers of BACKEND=byteps)
endif
LAUNCH := $(if $(filter byteps,$(BACKEND)),$(BYTEPS),$(MPIRUN))

# Several processes share the cores: a thread that waits for another process's should not keep a core for long.
# Hundreds of them import the same modules: they keep what they compile, pytest its assertions too, also where the
# environment would have every process compile them again. A part of the set-up that is missing is a failure here
# (tests/no_vanishing.py). NumPy computes references in one thread: the processes are more than the cores already.
PYTEST = GOMP_SPINCOUNT=1000 OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -q -p tests.no_vanishing --durations=20 \
	$(if $(filter 0,$(SLOW)),-m "not slow") $(ARGS) -p tests.parts

# The embedded default: 32 tokens, then four times as many. With 50% and 30% of them masked so short a run learns what
# context is for; with 15% it does not (docs/notebook/two_minutes.md).
SMALL := --model bert_2_128_2 --dropout 0 \
	--stages both --max_seq_length 32,128 --batch_size 768,1536 --use_avg_len --num_steps 1340,430 \
	--masked_lm_prob 0.5,0.3 --max_predictions_per_seq 16,39 \
	--lr 0.012,0.016 --warmup_ratio 0.1,0.05 --log_interval 50 --ckpt_interval 300

# With HOURS= another corpus, of Debian packages or of TEXT=, and the options that training/hours.py has for them.
HOURS ?=
TEXT ?=
PACKAGES ?=
CORPUS_DIR ?= runs/corpus$(if $(TEXT),_own)
BUILD := -m data.build_corpus --output $(CORPUS_DIR) \
	$(if $(TEXT),--text '$(TEXT)') $(if $(PACKAGES),--packages '$(PACKAGES)')
RUN_DIR ?= runs/$(if $(HOURS),hours_$(HOURS)$(if $(TEXT),_own),embedded)$(if $(filter byteps,$(BACKEND)),_byteps)
FROM := $(if $(HOURS),$(CORPUS_DIR),$(RUN_DIR))
CORPUS := $(if $(HOURS),$(BUILD),-m data.embedded --output $(RUN_DIR))
PRETRAIN := run_pretraining_$(BACKEND).py --resume \
	--raw --data '$(FROM)/corpus/train-*.txt' --data_eval $(FROM)/corpus/eval.txt --vocab $(FROM)/vocab.txt \
	$(if $(HOURS),$$($(PY) -m training.hours $(HOURS)),$(SMALL)) --ckpt_dir $(RUN_DIR)/ckpt
ifneq ($(and $(HOURS),$(filter finetune,$(MAKECMDGOALS))),)
$(error HOURS=$(HOURS): is for make pretrain; then make finetune INIT=$(RUN_DIR)/ckpt)
endif
ifneq ($(and $(TEXT)$(PACKAGES),$(filter pretrain,$(MAKECMDGOALS))),)
ifeq ($(HOURS),)
$(error TEXT= and PACKAGES= are for make corpus and, with HOURS=3, make pretrain)
endif
endif

# Questions out of the same text, with one word to find in a short context: what so small a model learns in
# half a minute. The same budget from the pretrained weights and from random ones, which learn it later: steps of 4
# and a low rate show this best. Each of the two trains in one process on one core, beside the other; over BytePS
# in two workers, after the other.
SEEDS ?= 3
QUESTIONS ?= 40000
STEPS ?= 4000
INIT ?=
SQUAD ?=
PRETRAINED := $(RUN_DIR)/ckpt/0001770.params
CLOZE := -m data.questions.cloze --output $(RUN_DIR)/questions \
	--input '$(RUN_DIR)/corpus/train-*.txt' --dev_input $(RUN_DIR)/corpus/eval.txt \
	--train_questions $(QUESTIONS) --dev_questions 600 --unanswerable 0.2 --per_sentence 20 --answer_words 1 \
	--sentences 1 --context_words 10 --question_words 10
FINETUNE := $(if $(filter byteps,$(BACKEND)),$(BYTEPS) $(PY),OMP_NUM_THREADS=1 $(PY)) finetune_squad.py --resume \
	--version_2 --seeds $(SEEDS) --train_file $(RUN_DIR)/questions/train.json --dev_file $(RUN_DIR)/questions/dev.json \
	--max_seq_length 64 --max_query_length 32 --doc_stride 32 --batch_size $(if $(filter byteps,$(BACKEND)),2,4) \
	--num_steps $(STEPS) --ckpt_interval $(STEPS) --optimizer adamw --lr 0.001 --dropout 0 --log_interval 500
# Says whose lines they are. Ctrl-C is for the training, which still has to save and to say so.
NAMED = 2>&1 | (trap '' INT; sed -u 's/^/$@: /')
COMMA := ,
FILES := $(subst $(COMMA), ,$(SQUAD))
ifneq ($(words $(FILES)),$(if $(SQUAD),2,0))
$(error SQUAD=$(SQUAD): give the file to train on, a comma, and the file to evaluate on)
endif

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | while IFS=$$'\t' read -r target text; do \
		printf '  make %-10s %s\n' "$$target" "$$text"; done

setup: ## set up .venv (PYTHON=python3.10 names an interpreter; CUDA=112 for GPU machines: docs/gpus.md)
	@PYTHON="$(PYTHON)" setup/bootstrap.sh --cuda="$(CUDA)"

pretrain: setup ## pretrain a small BERT on embedded English text in 2 processes (BACKEND=hvd or byteps, NP=2; HOURS=3)
	$(if $(HOURS),$(PY) -m training.hours $(HOURS))
	$(PY) $(CORPUS)
	$(LAUNCH) $(PY) $(PRETRAIN)
	@echo "three held-out sentences, chosen by their SHA-256, with a word masked:"
	@$(PY) predict.py $(RUN_DIR)/ckpt --examples $(FROM)/corpus/eval.txt
	@echo 'your own: $(PY) predict.py $(RUN_DIR)/ckpt "The [MASK] of the file is a [MASK] ."'

corpus: setup ## build the corpus of make pretrain HOURS=3, of Debian packages (PACKAGES=NAME,...) or TEXT='FILES'
	$(PY) $(BUILD)

finetune: setup ## fine-tune on questions, after pretraining (SQUAD=train.json,dev.json; INIT=WEIGHTS; SEEDS=3)
	$(if $(INIT),,test -e $(PRETRAINED) || { $(PY) $(CORPUS) && $(LAUNCH) $(PY) $(PRETRAIN); })
ifeq ($(SQUAD),)
	$(PY) $(CORPUS)
	$(PY) $(CLOZE)
	+@$(MAKE) --no-print-directory -j $(if $(filter byteps,$(BACKEND)),1,2) from-pretrained from-random
	$(PY) results.py --compare $(RUN_DIR)/from_random $(RUN_DIR)/finetuned
else
	$(LAUNCH) $(PY) finetune_squad.py --resume --init_from $(or $(INIT),$(RUN_DIR)/ckpt) \
		--train_file $(word 1,$(FILES)) --dev_file $(word 2,$(FILES)) --ckpt_dir $(RUN_DIR)/squad $(ARGS)
endif

from-pretrained:
	@$(FINETUNE) --ckpt_dir $(RUN_DIR)/finetuned --init_from $(or $(INIT),$(RUN_DIR)/ckpt) $(NAMED)

from-random:
	@$(FINETUNE) --ckpt_dir $(RUN_DIR)/from_random --model bert_2_128_2 --vocab $(RUN_DIR)/vocab.txt $(NAMED)

compare: setup ## compare Horovod with BytePS, about 21 minutes on 2 cores (ARGS="--repeats 2" goes to compare.py)
	$(PY) compare.py $(ARGS)

test: setup ## run the tests (SLOW=0 leaves out long ones, ARGS="-k hparams" goes to pytest)
	@# In three parts, see tests/parts.py. More processes than cores, because many tests wait: for a signal, a limit, a
	@# launcher. pytest ends with 5 where nothing was chosen.
	@no_ranks=0; $(PYTEST) --part no_ranks -n 4 || no_ranks=$$?; \
	ranks=0; $(PYTEST) --part ranks -n 6 --dist loadgroup || ranks=$$?; \
	alone=0; $(PYTEST) --part alone || alone=$$?; \
	case $$no_ranks,$$ranks,$$alone in 5,5,5|*[!05,]*) exit 1;; esac

reliability: setup ## attack real runs for MINUTES=240 on a quiet machine: docs/reliability.md (SEED=1, FIGURES=1,7)
	$(PY) -m tests.faults --minutes $(or $(MINUTES),240) --seed $(or $(SEED),1) \
		$(if $(FIGURES),--figures $(FIGURES)) $(ARGS)

bench: setup ## measure against peers: step, fine-tuning, loader, tokenizers, questions (BENCH=step; ARGS=--quick)
	@text=$$(mktemp -d); trap 'rm -rf "$$text"' EXIT; export BENCH_TEXT=$${BENCH_TEXT:-$$text}; \
	for each in $(BENCH); do echo "--- python -m bench.$$each" $(ARGS); $(PY) -m bench.$$each $(ARGS); done

check: setup ## lint, formatting, types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(TYPED)

check-gpu: setup ## for a machine with GPUs: precision, speed, memory, both backends; a verdict (never run on one)
	@$(PY) -m bench.gpu $(ARGS)

format: setup ## format the code and sort imports
	$(PY) -m ruff check --select I --fix .
	$(PY) -m ruff format .

# uv resolves for every Python at once; what holds for all of them (pyproject.toml) need not be on every line.
pins: ## resolve requirements.in into requirements.txt, for every Python (needs uv on PATH)
	uv pip compile --universal --python-version 3.9 --no-annotate --quiet --upgrade \
		--custom-compile-command "make pins" requirements.in -o requirements.txt
	sed -i -E "s/ and (implementation_name|platform_machine|platform_python_implementation|sys_platform) [!=]= '\w+'//g; \
		s/ ; python_full_version < '3.15'$$//; s/ and python_full_version < '3.15'//" requirements.txt

clean: ## remove .venv and caches in this folder (not runs/, not the wheel cache)
	rm -rf .venv setup*.log .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
