"""Limits to waiting, and who is missing when one is reached."""
