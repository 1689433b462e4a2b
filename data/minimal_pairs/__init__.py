"""Pairs of sentences, of which a model of the language should find the first one likelier, as in BLiMP.

read        the pairs of JSON-lines, TSV and CSV files
copies      sentences to batches of copies with one token masked
accuracy    judgements to accuracies by paradigm and group, with standard errors
plot        a picture of them
"""
