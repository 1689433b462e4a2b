"""Directories of columns on disk, built once in parallel and mapped by every rank."""
