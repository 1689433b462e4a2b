"""Masked batches of one rank, made of stored tokens or instances."""
