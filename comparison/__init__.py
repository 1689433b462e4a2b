"""Horovod against BytePS, side by side: the parts of compare.py, without MXNet.

options       the command line
settings      the combinations that are compared
main          a comparison in its order
launching/    from a setting to its record
record        the results of one launch
store         finished launches on disk, so that a comparison continues
progress      the bar or the lines, with the time left
statistics    paired tests, and the rule for verdicts
reporting/    from records to the report
messages/     the parts of --comm_only
projection/   the parts of --project
"""
