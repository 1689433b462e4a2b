"""Masked language model and next sentence.

loss     both losses above BERT on MXNet's operators
fused    the same on the fused operators
stages   both divided over the stages of a pipeline
scores   probabilities for text that is no training example
vectors  pooled hidden states of such text
task     the task: inputs, count, figures, summary
"""
