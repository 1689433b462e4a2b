"""The exchange of arrays between the ranks of a run: one interface, several libraries behind it.

base          the interface and its rules
local         one process, nothing to exchange
horovod       the exchange over Horovod
byteps/       all of BytePS
buckets       arrays that are sent together
bits          arrays as whole numbers, for sums that keep every bit
delegating    the common part of communicators around another one
compression/  gradients in fewer bytes
watch/        limits to waiting
"""
