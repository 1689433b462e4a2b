"""Horovod against BytePS, side by side: the parts of compare.py."""
