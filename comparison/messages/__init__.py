"""Communication alone, by message size: compare.py --comm_only.

plan     options, messages, and the memory that these need
rank     one rank of a launch, and arrays whose mean is known
command  the options and the sweep; one launch, repeated without the size that failed
report   latency, bandwidth and verdicts; the tables, the picture and the sentences
"""
