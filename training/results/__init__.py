"""Results of runs: files that say what a run was and brought, and many runs with one option different.

record  results.json: its fields, writing and reading
of_run  the results of a run of `training.run`
"""
