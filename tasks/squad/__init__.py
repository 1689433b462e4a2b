"""Answers to questions as spans of their contexts: SQuAD.

examples   windows as examples, and scores from their logits; without MXNet
loss       start and end of the answer above BERT, on either operators
task       the task: inputs, count, figures, summary
"""
