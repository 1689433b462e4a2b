"""Examples of any kind to the batches of one rank.

batching  orders of examples by length, for training, seekable by step, and for evaluation; micro-batches
"""
