"""A run as processes on hosts, from its plan to its end and its restarts. Standard library only.

parts          processes of a run as data
over_mpirun    a run over Horovod: mpirun
over_byteps    a run over BytePS: scheduler, servers, ranks; public addresses at which they listen
mpirun_output  whose line it is that mpirun shows, and which rank failed
output         lines, prefixes and log files of the parts
signals        signals as events
running        the parts run to their end, or all taken down
saved          checkpoints by their names
roster         hosts in use, spare, left out
restarts       a run that is started again after a failure
"""
