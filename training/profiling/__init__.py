"""Traces of steps, and the parts of their time.

profiler        a trace of a few steps of a run
trace           events of a trace
kinds           kinds of work, by an operator's name and neighbours
intervals       arithmetic of time intervals
breakdown       a trace to numbers
stages          the stages of pipelines on one time axis
table, picture  the numbers for people
peak            the rate of a large matrix product
"""
