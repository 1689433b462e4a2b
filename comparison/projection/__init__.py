"""Throughput and efficiency on many GPUs, predicted: compare.py --project."""
