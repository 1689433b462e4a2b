"""Updates of the weights from gradients.

scaler     the loss scale, and the end after many non-finite gradients
schedule   the learning rate by step
update     the arithmetic, on MXNet's and on the fused operators, and the type of mean and variance
optimizer  LAMB and two Adams
shards     the same with states divided over the ranks
"""
