"""How the ranks of one run exchange arrays: one small interface, several libraries behind it."""
