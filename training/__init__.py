"""A run: options, inputs, start, loop, step, evaluation, metrics, checkpoints."""
