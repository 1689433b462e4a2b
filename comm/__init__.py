"""The exchange of arrays between the ranks of a run: one interface, several libraries behind it.

base         the interface and its rules
options      the options, and the configuration made of them
local        one process, nothing to exchange
horovod      the exchange over Horovod
byteps/      all of BytePS
bits         arrays as whole numbers, for sums that keep every bit
compression  averages in fewer bytes, and communicators that compress
watch/       limits to waiting
backends     the one that a process was launched for
"""
