"""Reports of training runs: figures, verdicts, tables and plots.

limits          differences that two equal computations may have
agreement       the comparison of computed values
results         each setting's figures, or the reason for none
figures         the figures of a setting
wording         numbers and names for people
sections        the tables of a report
canvas          the common parts of the plots
plots           throughput, scaling, losses
breakdown_plot  the time of a step as bars
document        report.md in its order
report          all files of a report, and the text for a terminal
"""
