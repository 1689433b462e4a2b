"""From records to figures, verdicts, tables and plots.

limits          differences that two equal computations may have
agreement       the comparison of computed values
results         each setting's figures, or the reason for none
figures         the figures of a setting
breakdown       the time of a step by kind, over launches
traffic         bytes that each algorithm sends
finish          time and cost of both stages at a measured rate
wording         numbers and names for people
tables          one table as text and as Markdown
sections        the tables of a report
views           the same results in the tables usual in the field
summary         the first sentences
canvas          the common parts of the plots
plots           throughput, scaling, losses
breakdown_plot  the time of a step as bars
document        report.md in its order
report_json     report.json for programs
report          all files of a report, and the text for a terminal
"""
