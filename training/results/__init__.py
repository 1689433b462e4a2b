"""Results of runs: what a run was and brought, and runs that differ in their seed or in a few options.

record   results.json: its fields, writing and reading
of_run   the results of a run of `training.run`
members  --seeds and --search: runs one after the other
summary  mean and spread over seeds, the best of a search, two models compared
tables   runs in folders, what they have in common, and tables of them
page     one page of tables, and of plots of many runs laid over each other
"""
