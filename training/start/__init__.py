"""The one door into a run: fresh, from parameters, or from a checkpoint.

options     the table of the options that say where a run starts, and its stages
vocabulary  the vocabulary beside the checkpoints
initial     weights that an option names, for another vocabulary too, compared with the run's model
pretrained  options about weights that do not say everything about themselves
start       the decision, which rank 0 makes before MXNet is imported, and all that follows from it
lock        the directory, for this run alone, and the decision for every rank
restoring   parameters and optimizer states, from rank 0 to all
"""
