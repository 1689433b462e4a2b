"""Gradients sent in fewer bytes, and what is done about the error."""
