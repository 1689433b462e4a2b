"""Measurements against peers.

quick              --quick and the default text of all measurements
step               command: a training step, against Hugging Face on PyTorch and GluonNLP
contestants        the participants of bench.step, and their interpreters
work               sizes, matrix products and memory of the measured step
rounds             interleaved rounds, ratios, spread, the table
workers, serve     processes that take a step on request: the parent's side, and those of a measurement; the
                   worker's side
step_ours          the worker of this project
peer_torch         the worker of Hugging Face on PyTorch
peer_gluonnlp      the worker of GluonNLP
loader             command: batches, against GluonNLP's raw path
raw_path           that path: Google's algorithm, document by document
tokenize_text      command: tokenizers, against Hugging Face's and GluonNLP's
questions          command: SQuAD's features, answers and scores, against a pure-Python loop
question_loop      that loop: Google's algorithms, question by question
finetune           command: fine-tuning, scores over seeds and speed, against Hugging Face on PyTorch
finetune_data      questions and sentence pairs to its batches
finetune_work      its settings and batches in files
finetune_ours      the worker of this project
finetune_torch     the worker of Hugging Face on PyTorch
launches           of the training script, for the two below
startup            command: from a launch to the first step, and hparams.py's answer
pipelines          command: pipelines: throughput against the bubble, memory of the stages
measured_rank      a rank of bench.pipelines, with its memory measured and limited
gpu                command: all that a machine with GPUs must show: precision, speed, backends
gpu_worker         one measurement of bench.gpu
"""
