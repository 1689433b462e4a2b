"""Examples of any kind to the batches of one rank.

ragged    rows of different lengths in one flat array
batching  orders of examples by length: for training, seekable by step, and for evaluation
batches   micro-batches in a training order, made when they are due
"""
