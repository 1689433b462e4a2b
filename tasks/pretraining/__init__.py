"""Masked language model and next sentence.

loss   both losses above BERT on MXNet's operators
fused  the same on the fused operators
task   the task: inputs, normalisers, figures, summary
"""
