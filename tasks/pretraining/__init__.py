"""Masked language model and next sentence.

loss          both losses in one graph with the network
"""
