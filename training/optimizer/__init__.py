"""Updates of the weights from gradients.

accumulation                 sums of gradients over micro-batches
scaler                       the loss scale, and the end after many non-finite gradients
schedule                     the learning rate by step
update_rule                  the numbers in the formulas
moments                      the type in which mean and variance are kept
optimizer                    LAMB and two Adams
shards                       the same with states divided over the ranks
mxnet_update, native_update  the arithmetic, on MXNet's and on the fused operators
"""
