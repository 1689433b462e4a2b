"""Text in which special tokens are written as such: "Paris is the [MASK] of France ."

Tokenizers take "[MASK]" for punctuation and a word, as a text that is trained on may well contain it. Here it
is the token, whatever the case of the rest, as in Hugging Face's tokenizers.
"""

from __future__ import annotations

import re
from typing import Sequence

from data.tokenizing.tokenizer import Tokenizer
from data.tokenizing.vocab import SPECIAL_TOKENS, Vocabulary

_SPECIAL = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")")


def encode_marked(texts: Sequence[str], tokenizer: Tokenizer, vocabulary: Vocabulary) -> list[list[int]]:
    """The ids of each text, [PAD], [UNK], [CLS], [SEP] and [MASK] in it being those tokens."""
    special = dict(zip(SPECIAL_TOKENS, vocabulary.special_ids))
    parts = [_SPECIAL.split(text) for text in texts]  # text and special tokens in turns
    plain = [part for each in parts for part in each if part not in special]
    encoded = iter(tokenizer.encode_batch(plain))
    return [
        [token for part in each for token in ([special[part]] if part in special else next(encoded))]
        for each in parts
    ]
