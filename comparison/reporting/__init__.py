"""Reports of training runs: figures, verdicts, tables and plots."""
