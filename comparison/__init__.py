"""Horovod against BytePS, side by side: the parts of compare.py, without MXNet.

options      the command line
settings     settings, their launches, and the order of these
campaign     the loop over launches, and a directory that a second call continues
backends     the number of GPUs, and the command that starts each backend's ranks
launch       one launch, of which nothing remains: its memory, the reason of its failure
verdicts     tests, paired within a report and unpaired across reports, and the rule for verdicts
canvas       the common parts of the plots
report       the files of a report, its text for the terminal, numbers and names for people
runs/        the comparison of training runs
messages/    the parts of --comm_only
projection/  the parts of --project
emulation/   the parts of --emulate
merge        --merge: reports of earlier comparisons over each other
"""
