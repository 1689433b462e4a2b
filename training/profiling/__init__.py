"""Traces of steps, and where their time goes."""
