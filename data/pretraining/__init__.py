"""Stored tokens to the masked batches of one rank.

randomness  random numbers and orders as functions of seed, epoch and place
pairs       sentence pairs of an epoch
masks       positions to predict, and their replacements
prefetch    work done ahead in threads: batches, results of an epoch
sources     samples by index, from a token store or an instance store
buckets     length buckets, and the order of an epoch's blocks
batches     batches of a rank, seekable, for any number of ranks; of held-out samples, also without context
"""
