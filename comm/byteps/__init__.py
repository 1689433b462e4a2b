"""All of BytePS.

environment   the variables of BytePS, checked
library       the calls of BytePS that are used
channels      sums through BytePS's servers, without their race
communicator  the exchange over BytePS
"""
