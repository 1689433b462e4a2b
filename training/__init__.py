"""A run, from the command line to the last checkpoint.

options_file        options in YAML files
config              tables of options, and all settings of a run
hours               command: the options of a run of so many hours
options             the command line of the pretraining scripts, and the settings made of it
start/              the one door into a run: fresh, from parameters, from a checkpoint
deadline            the end of a run's time on its machine
plan                steps or hours, learning rate and warmup: given, or the paper's
run_inputs          inputs of a run: its data, plan and feeds, as a base class; micro-batches of this rank
inputs              pretraining's, checked before MXNet is imported
finetuning/         fine-tuning's, with its options and its plan
estimate            memory of a run, compared with what is there; the work of each stage of a pipeline
stopping            signals, from the first moment to the last step
entry               exceptions to one line and an exit code
exchange            values of one rank for all
agreement           the ranks have the same options, data and code, and later the same state
model               the network, or a stage of it, with those numbers, on the device of a rank
run                 everything that a run has, and its state, opened; run.yaml
loop                steps, logs, evaluations and checkpoints
train               a run or its stages, from the first to the last
pretraining         the command of both pretraining scripts
step                forward, backward, sum, average, clip, update; the time that ranks wait for each other
guard               steps that are finite but wrong
pipeline/           layers over ranks: options, places, splits
optimizer/          LAMB, Adam, schedule, loss scale
metrics             sums over steps and ranks; evaluations
spread              standard errors of means, and of differences
utilisation         operations done, of those that the devices could do, as a large product shows
report              progress, metrics.jsonl, TensorBoard's events, plot, closing lines
results/            results.json, and many runs with one option different
states_file         optimizer states in a file, written, and checked before they are believed
checkpoint          three files a checkpoint, complete or not there
saving              the state copied, and written by a thread
last_good           checkpoints of the loop: the one to go back to when steps are skipped, the best
rescue              the state after the last complete step, saved where other ranks are lost
left_behind         checkpoints that a failure has left elsewhere, for the next start
stalled             a warning where the loss does not fall
profiling/          traces of steps
profile             command: the parts of a step's time
"""
