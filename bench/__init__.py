"""Measurements against peers.

harness          command lines with --quick and --json, rounds, quartiles, ratios and the default text
workers          processes that take a step on request: the worker's side, and the parent's
ours             the worker of this project
peer_torch       the worker of Hugging Face on PyTorch
peer_gluonnlp    the worker of GluonNLP
peer_onnx        the worker of onnxruntime, for answers
step             command: a training step, against Hugging Face on PyTorch and GluonNLP
work             sizes and matrix products of that step
trainings        settings and batches of trainings in files, and the steps that all workers make of them
finetune         command: fine-tuning, scores over seeds and speed, against Hugging Face on PyTorch
latency          command: answers, one call after the other, against PyTorch and onnxruntime
pretraining      command: the same pretraining, losses and time, against Hugging Face on PyTorch
loader           command: batches, against GluonNLP's raw path
raw_path         that path: Google's algorithm, document by document
tokenize_text    command: tokenizers, against Hugging Face's and GluonNLP's
questions        command: SQuAD's features, answers and scores, against a pure-Python loop
question_loop    that loop: Google's algorithms, question by question
startup          command: from a launch to the first step, and hparams.py's answer
gpu              command: all that a machine with GPUs must show: precision, speed, backends
gpu_worker       one measurement of bench.gpu
"""
