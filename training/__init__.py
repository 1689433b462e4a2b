"""A run, from the options to the last checkpoint.

options                the command line of the training scripts
data_options           its part for the input
communication_options  its part for the exchange of gradients
inputs                 checks of a run's files before MXNet is imported
plan                   steps, learning rate and warmup: given, or the paper's
run                    the run in its order
open_data              files to samples, prepared once a host
feed                   this rank's batches for the loop
step                   forward, backward, average over ranks, clip, update
optimizer/             LAMB, Adam, schedule, loss scale, accumulation
metrics                sums over steps and ranks, and their figures
evaluation             losses and accuracies on held-out data
report                 progress, metrics.jsonl, TensorBoard, loss.png
state                  the contents of a checkpoint, on every rank
checkpoint             three files a checkpoint, complete or not there
summary                the closing lines of a run
entry                  an exception as one line and an exit code
profile                command: the time of a step by its parts
profiling/             traces of steps, and the time in them
"""
