"""Layers over ranks: pipelines of stages, in data-parallel replicas.

placement  the stage and the replica of each rank
split      the layers of each stage
"""
