"""Stored tokens to the masked batches of one rank.

randomness  random numbers and orders as functions of seed, epoch and place
pairs       sentence pairs of an epoch
masks       positions to predict, and their replacements
epochs      results of an epoch, made ahead
sources     samples by index, from a token store or an instance store
buckets     length buckets, and the order of an epoch's blocks
prefetch    work done ahead in threads, results in order
batches     batches of a rank, seekable, for any number of ranks
evaluation  batches of held-out samples, and the same without their context
"""
