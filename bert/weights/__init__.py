"""Parameter files.

tensors           weights of any format: names and shapes first, numbers on demand
params_file       MXNet's .params format in plain Python
stored            tensors as bytes at a place of a file
safetensors_file  Hugging Face's format
table             TensorFlow's sorted tables of keys and values
bundle            TensorFlow's checkpoints
stored_zip        members of archives that are not compressed
pickle_data       pickles read as data
pickled           PyTorch's files
bare_params       checks of a file without a manifest
published         downloads from GluonNLP's model zoo
"""
