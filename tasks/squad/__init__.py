"""Answers to questions as spans of their contexts: SQuAD.

examples   windows as examples, and scores from their logits; without MXNet
task       the answer's start and end above BERT, on either operators: inputs, count, figures, summary
"""
