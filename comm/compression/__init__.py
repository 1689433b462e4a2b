"""Gradients in fewer bytes, and the error that this makes.

settings      the options for compression, and the communicator they give for each backend
half          averages as float16
pieces        averages through BytePS's compressors
feedback      error feedback around compressors
"""
