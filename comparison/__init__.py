"""Horovod against BytePS, side by side: the parts of compare.py, without MXNet.

options      the command line
settings     the combinations that are compared, and their order
main         the comparison that the options choose, and the exit code
campaign     launches that a second call continues: directory, progress, time left
launching/   launches of ranks over any backend
runs/        the comparison of training runs
verdicts     paired tests, and the rule for verdicts
reporting/   from records to the report
messages/    the parts of --comm_only
projection/  the parts of --project
"""
