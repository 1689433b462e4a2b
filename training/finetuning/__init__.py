"""Fine-tuning: options, weights to begin with, the plan, and what a run reads.

options    the command line that both scripts share
settings   the settings of a run made of it
beginning  the weights and the vocabulary that a run begins with
plan       epochs to steps, learning rate and warmup
inputs     examples to train on and to evaluate on
outcome    results.json of a finished run
"""
