"""One label, or a number, for a text or a pair of texts: GLUE and one's own files.

examples   texts as examples, and scores and submissions from the network's outputs; without MXNet
loss       the classifier or regression above BERT, on either operators
task       the task: inputs, count, figures, summary
"""
