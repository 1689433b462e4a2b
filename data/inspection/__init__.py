"""The parts of the command data.inspect.

opened         the input, opened: a store, files with masks, or text
sampling       the parts of large inputs that are read
decoding       instances as readable text
tallies        numbers about samples and batches
repeated       repeated sequences of tokens: mark-up, boilerplate
warning_rules  rules of thumb for suspicious numbers
report         the output on a terminal
histogram      bars in a terminal, and as PNG
"""
