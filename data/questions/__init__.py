"""SQuAD: questions about a text, whose answers are slices of it.

cloze        command: questions out of plain text, for a machine without SQuAD
squad_files  SQuAD's JSON files to questions, and their division by article
windows      texts to tokens and their places; questions to windows over their contexts, and to batches
answers      logits of windows to the best answers, and files of these in Google's format
score        exact match, F1 and thresholds as the official scripts compute them, and their command
"""
