"""Exchange of arrays between the ranks of one run: one small interface, several libraries behind it."""
