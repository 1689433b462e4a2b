"""The network and its parameters.

configuration  sizes of a BERT, by its name or in full
config_file    the same from a bert_config.json
flops          floating-point operations of a step
memory         bytes of a step
arrays         inputs from Python's numbers, without a wait
model          BERT with its two heads, from GluonNLP's blocks
part           a part of its layers, for a stage of a pipeline
operators      the fused CPU operators: loading, and the choice between them and MXNet's
fused          embedding and transformer layers on the fused operators
weights/       parameter files
"""
