"""Directories of columns: built by many processes, resumable, memory-mapped, cached by content."""
