"""Updates of the weights from gradients.

scaler     the loss scale, and the end after many non-finite gradients
schedule   the learning rate by step
states     their type, and what a checkpoint has of them
optimizer  LAMB and two Adams, on MXNet's and on the fused operators
muon       the update of the layers' matrices by Muon
shards     the same with states divided over the ranks
"""
