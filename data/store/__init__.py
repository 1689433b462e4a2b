"""Directories of columns on disk, built once in parallel and mapped by every rank.

manifest   JSON files beside the columns
columns    columns cut into shards, mapped as one array; errors where a file becomes shorter
build      a directory from many units: parallel, in order, resumable; or opened, where it is there
cache      checksums and checks that are remembered
tokens     the token store, and figures about a tokenized text
instances  the instance store
"""
