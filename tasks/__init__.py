"""The tasks that a network is trained for: batches to losses to figures.

base          the interface of a task
pretraining/  masked language model and next sentence
"""
