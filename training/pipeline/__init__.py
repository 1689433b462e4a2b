"""Layers over ranks: pipelines of stages, in data-parallel replicas.

placement   the stage and the replica of each rank
split       the layers of each stage
options     the options, and the configuration made of them
shares      the layers, parameters, work and memory of each stage
ranks       every rank in its place, with its neighbours and its group
schedule    the order of a stage's forward and backward passes
stream      activations and gradients between neighbouring stages
parameters  what the stages begin with
step        an optimizer step over the stages
evaluation  forward passes alone
saving      checkpoints, written by the stages together
"""
