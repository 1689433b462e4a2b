"""LAMB and two Adams, learning rate, loss scale, accumulation.

accumulation   sums of gradients over micro-batches
scaler         loss scale, and the limit to non-finite gradients
schedule       linear warmup, polynomial decay
optimizer      LAMB and two Adams
update_rule    the settings of an update
mxnet_update   the update on MXNet's operators
native_update  the update on this project's operators
"""
