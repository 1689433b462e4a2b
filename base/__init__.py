"""Foundations of every other package. They import nothing of the project.

errors        exceptions that end a program with one line and an exit code
files         files that appear whole or not at all, and their checksums
locks         one process at a time, and none after the holder has ended
numbers       numbers on a command line, each in its range
progress      a bar on a terminal, lines in a log
workers       a function over many jobs in worker processes, results in order
threads       OMP_NUM_THREADS from cores and local ranks
machine       the machine of a measurement, and its use by others
"""
