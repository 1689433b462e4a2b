"""Tokenizers of sentences, and vocabularies for them."""
