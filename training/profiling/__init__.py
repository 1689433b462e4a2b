"""Traces of steps, and the parts of their time.

profiler   a trace of a few steps of a run
trace      events of a trace, with the kind of work of each
intervals  arithmetic of time intervals
breakdown  a trace to numbers, and their table
stages     the stages of pipelines on one time axis
picture    the numbers for people
"""
