"""Parameter files.

tensors      weights of any format: names and shapes first, numbers on demand
params_file  MXNet's .params format in plain Python
bare_params  checks of a file without a manifest
published    downloads from GluonNLP's model zoo
"""
