"""Updates of the weights from gradients.

scaler     the loss scale, and the end after many non-finite gradients
schedule   the learning rate by step
moments    the type in which mean and variance are kept
update     the arithmetic, on MXNet's and on the fused operators
optimizer  LAMB and two Adams
shards     the same with states divided over the ranks
"""
