"""Results of runs: what a run was and brought, and runs that differ in their seed or in a few options.

record   results.json: its fields, writing and reading
of_run   the results of a run of `training.run`
members  --seeds and --search: runs one after the other
summary  mean and spread over seeds, the best of a search, two models compared
runs     runs in folders, and what they have in common
tables   tables of many runs
plots    metrics of many runs laid over each other, scores over seeds
page     one page of tables and plots
"""
