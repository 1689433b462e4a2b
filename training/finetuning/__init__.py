"""Fine-tuning: options, weights to begin with, and what a run reads.

beginning  the weights and the vocabulary that a run begins with
options    the command line that both scripts share, and the settings made of it
inputs     examples to train on and to evaluate on, and the plan
several    the command of both scripts: one run, or all of --seeds and --search
"""
