"""Comparison of training runs.

launches  the options of the training scripts, and a launch's directory
record    metrics and traces as a record of one launch
command   a comparison from its options to the report
"""
