"""Weights in files: GluonNLP's own, and those of others.

published    downloads from GluonNLP's model zoo
params_file  MXNet's .params format in plain Python
bare_params  checks of a file without a manifest
tensors      weights of any format: names and shapes first, numbers on demand
names        GluonNLP's, Google's and Hugging Face's names of each weight
spellings    names as files really have them
assembly     sizes from shapes; checks that a whole BERT is there
opening      the one door, by a file's content
"""
