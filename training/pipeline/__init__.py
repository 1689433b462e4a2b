"""Layers over ranks: pipelines of stages, in data-parallel replicas.

placement  the stage and the replica of each rank
split      the layers of each stage
options    the options, and the configuration made of them
shares     the layers, parameters, work and memory of each stage
"""
