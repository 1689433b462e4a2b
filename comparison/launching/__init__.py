"""Launches of ranks over any backend.

backends  the number of GPUs, and the command that starts each backend's ranks
launch    one launch, of which nothing remains
memory    peak memory of workers and servers
failure   the reason of a failed launch, in a line
"""
