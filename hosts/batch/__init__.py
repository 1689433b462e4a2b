"""Runs on clusters that start processes themselves: Slurm, Kubernetes, SageMaker.

templates      YAML templates: filled, merged with fields of one's own, and written
"""
