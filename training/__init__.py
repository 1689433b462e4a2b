"""A run, from the command line to the last checkpoint.

options_file  options in YAML files
options     the command line of the training scripts
config      frozen settings made once from the options
inputs      the run's files, checked before MXNet is imported
entry       exceptions to one line and an exit code
budget      hours instead of steps
plan        steps, learning rate and warmup: given, or the paper's
start       the one door into a run: fresh, from parameters, from a checkpoint
run_file    run.yaml, the options of a run
run         everything that a run has, and its state
loop        steps, logs, evaluations and checkpoints
feed        micro-batches of this rank
step        forward, backward, average, clip, update
optimizer/  LAMB, Adam, schedule, loss scale, accumulation
evaluation  figures of a task over held-out data
metrics     sums over steps and ranks
utilisation  operations done, of those that the devices could do
report      progress, metrics.jsonl, TensorBoard, plot, closing lines
checkpoint  three files a checkpoint, complete or not there
pretrained  weights of a checkpoint, or of any other file
profiling/  traces of steps
profile     command: the parts of a step's time
"""
