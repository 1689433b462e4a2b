"""Comparison of training runs.

record     metrics and traces as a record of one launch
command    a comparison from its options to the report, with the launches of the training scripts
agreement  the comparison of computed values, and the differences that two equal computations may have
results    the figures of each setting, or the reason for none
sections   the tables of a report
plots      throughput, scaling, losses, and the time of a step as bars
report     report.md in its order, all other files of a report, and the text for a terminal
"""
