"""The network.

model             BERT with its two heads, from GluonNLP's blocks
network           the choice between MXNet's operators and this project's
fused             the network and its losses on this project's operators for CPUs
native_operators  the loader of these operators
weights/          parameter files
"""
