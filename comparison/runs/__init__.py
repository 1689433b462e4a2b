"""The comparison of training runs: launches, their records, the command."""
