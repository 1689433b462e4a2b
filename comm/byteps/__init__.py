"""All of BytePS.

environment   variables of a process's place in a run, checked
library       the calls of byteps.mxnet, without their faults
communicator  the exchange over BytePS
"""
