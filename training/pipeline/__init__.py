"""Layers over ranks: pipelines of stages, in data-parallel replicas.

placement  coordinates: the stage and the replica of each rank
split      the layers of each stage
options    the options, and the configuration made of them
schedule   the order of a stage's passes
ranks      all ranks: coordinates, neighbours, groups
state      parameters and states between rank 0 and the stages
step       an optimizer step over the stages, and forward passes alone
"""
