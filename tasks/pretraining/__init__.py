"""Masked language model and next sentence.

loss    both losses above BERT, on either operators
stages  both divided over the stages of a pipeline
scores  probabilities and vectors for text that is no training example
task    the task: inputs, count, figures, summary
"""
