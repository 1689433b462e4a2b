"""From a setting to the record of its launch.

devices       the number of GPUs
backends      the command that starts each backend's ranks
training      the options of the training scripts
launch        one launch, of which nothing remains
memory        peak memory of workers and servers
failure       the reason of a failed launch, in a line
read_run      metrics and traces as a record
"""
