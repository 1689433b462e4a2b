"""From sentences to token ids, and the vocabularies for it."""
