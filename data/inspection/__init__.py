"""The parts of the command data.inspect.

decoding       instances made readable
figures        figures of samples, batches and text
histogram      bars in a terminal and as a picture
report         the report for a terminal, with warnings about the figures
"""
