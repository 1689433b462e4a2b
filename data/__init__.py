"""Text to tokens to instances to batches; nothing in here imports mxnet."""
