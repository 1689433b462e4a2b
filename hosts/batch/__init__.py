"""Runs on clusters that start processes themselves: Slurm, Kubernetes, SageMaker.

templates      Kubernetes' YAML templates: filled, merged with fields of one's own, and written
ssh            pods of a run over Horovod reach each other
gathering      pods of a run over BytePS begin and end together
"""
