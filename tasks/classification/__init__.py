"""One label, or a number, for a text or a pair of texts: GLUE and one's own files.

examples   texts as examples, and scores and submissions from the network's outputs; without MXNet
task       the classifier or regression above BERT, on either operators: inputs, count, figures, summary
"""
