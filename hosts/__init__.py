"""Host files, and the commands that start a run on the hosts they name."""
