"""Sentences to token ids, and the vocabularies for it.

training_text            sentences that a vocabulary is trained on
train_wordpiece          a WordPiece vocabulary from them
train_sentencepiece      a SentencePiece model from them
vocab                    a vocabulary and BERT's special tokens
tokenizer                the interface of tokenizers, and the settings that make one
wordpiece, words         WordPiece, through a table of words
sentencepiece_model      models checked before the library reads them
sentencepiece_tokenizer  SentencePiece, also sampled
marked_text              text in which special tokens are written as such
"""
