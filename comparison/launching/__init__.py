"""Launches of ranks over any backend."""
