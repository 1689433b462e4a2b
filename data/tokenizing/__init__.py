"""Sentences to token ids, and the vocabularies for it.

vocab      a vocabulary and BERT's special tokens
tokenizer  WordPiece, through a table of words; SentencePiece, also sampled, its models being checked first;
           the settings that make one of these; special tokens in text
"""
