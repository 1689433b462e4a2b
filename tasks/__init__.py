"""The tasks that a network is trained for: batches to losses to figures.

base             the interface of a task
networks         the base of their networks on MXNet's operators
seeds            scores over seeds, and whether two models differ beyond them
pretraining/     masked language model and next sentence
squad/           answers to questions as spans of their contexts
classification/  a label or a number for a text or a pair
"""
