"""Texts with a label or a number to batches, and predictions to scores.

examples    lines of TSV, CSV and JSON-lines files; texts and labels of one file, checked
glue        the official files of GLUE and XNLI; predictions in GLUE's submission format
own         files of one's own, with columns by name or position
embedded    command: a small data set of one's own files, from the embedded text
features    examples as token ids, and their batches
metrics     scores of predictions, as the benchmark defines them
"""
