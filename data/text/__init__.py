"""Text files: where they are, in which form, and their sentences."""
