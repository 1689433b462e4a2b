"""compare.py --emulate: real backends between emulated hosts.

The hosts are network namespaces of this machine, each behind a link of a given rate; ranks sleep in place of
computing.

plan     settings, the scale, and the processes of a launch
network  the hosts and their links, of which nothing remains
rank     a rank that replays steps
yield.c  how a rank that waits leaves its processor to others
command  the launches
report   figures beside the projection's, verdicts, and the report
"""
