"""Tasks that a network is trained for.

pretraining/  masked language model and next sentence
"""
