"""Sentences to token ids, and the vocabularies for it.

vocab                    a vocabulary and BERT's special tokens
tokenizer                the interface of tokenizers, the settings that make one, special tokens in text
wordpiece                WordPiece, through a table of words
sentencepiece_tokenizer  SentencePiece, also sampled; models are checked before the library reads them
"""
