"""Parameter files.

params_file   MXNet's .params format in plain Python
bare_params   checks of a .params file without a manifest
published     downloads of GluonNLP: vocabularies, Google's parameters
"""
