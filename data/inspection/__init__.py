"""The parts of the command data.inspect.

decoding       instances made readable
figures        figures of samples, batches and text
report         the report for a terminal, with histograms and warnings about the figures; the picture
"""
