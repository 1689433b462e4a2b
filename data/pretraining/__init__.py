"""Stored tokens to the masked batches of one rank.

sources          the interface of sources: samples by index
text_source      samples from a token store, drawn anew each epoch
instance_source  samples from an instance store
streams          random numbers by seed, epoch and place
pairs            sentence pairs of an epoch
masks            positions to predict, and their replacements
permutation      a random order without a list
buckets          length buckets, and the order of an epoch's blocks
epochs           plans of epochs, made ahead
batches          batches of a rank, seekable, for any number of ranks
prefetch         work done ahead in threads, results in order
"""
