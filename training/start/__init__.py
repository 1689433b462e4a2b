"""The one door into a run: fresh, from parameters, or from a checkpoint.

weights         weights that an option names: of our checkpoints, or of any other file
new_vocabulary  their rows for another vocabulary
initial         parameters to begin with, compared with the run's model
vocabulary      the vocabulary beside the checkpoints
start           the decision, as a value, and all that follows from it
decision        the decision: rank 0 makes it, before MXNet is imported, by what the run's own directory has
lock            the directory, for this run alone, and the decision for every rank
restoring       parameters and optimizer states, from rank 0 to all
"""
