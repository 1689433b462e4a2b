"""Communication alone, by message size: compare.py --comm_only.

command   the options and the sweep
plan      messages, repetitions and memory
launches  one launch, repeated without the size that failed
rank      one rank of a launch
values    arrays whose mean is known
figures   latency, bandwidth and verdicts
report    the table and the files
plot      latency and bandwidth as a picture
"""
