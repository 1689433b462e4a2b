"""Masked language model and next sentence.

loss    both losses above BERT on MXNet's operators
fused   the same on the fused operators
scores  probabilities for text that is no training example
task    the task: inputs, count, figures, summary
"""
