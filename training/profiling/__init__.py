"""Traces of steps, and the time in them.

profiler      a trace of a few steps of a run
trace         events of one rank, kept as a Chrome trace
kinds         the kind of work of each operator
intervals     arithmetic of time intervals
breakdown     a step's time, by kind
flops         the operations of a step, from shapes
table         the breakdown as a table
picture       the breakdown as a picture
"""
