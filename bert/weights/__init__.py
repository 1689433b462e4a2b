"""Weights in files: GluonNLP's own, and those of others.

published         downloads from GluonNLP's model zoo
tensors           weights of any format: names and shapes first, numbers on demand, from a place of a file
params_file       MXNet's .params format in plain Python
safetensors_file  Hugging Face's format
bundle            TensorFlow's checkpoints
onnx_file         the network with its weights as an ONNX graph
pickle_data       pickles read as data
pickled           PyTorch's files
names             GluonNLP's, Google's and Hugging Face's names of each weight
bare_params       checks of a file without a manifest
spellings         names as files really have them
assembly          sizes from shapes; checks that a whole BERT is there
beside            configuration and vocabulary in the files beside weights
opening           the one door, by a file's content
exporting         folders as other programs write them
"""
