"""The exchange of arrays between the ranks of a run: one interface, several libraries behind it.

base         the interface and its rules
options      the table of the options, and the backend that a process was launched for
local        one process, nothing to exchange
mpi          messages between two ranks, over MPI
horovod      the exchange over Horovod, and MPI for messages
byteps/      all of BytePS
numbering    equal shares for its servers
buckets      neighbouring arrays that travel as one
bits         arrays as whole numbers, for sums that keep every bit
compression  averages in fewer bytes, and communicators that compress
watch/       limits to waiting
backends     the communicator of a backend
"""
