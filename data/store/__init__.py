"""Directories of columns on disk, built once in parallel and mapped by every rank.

manifest   JSON files beside the columns
mapped     files mapped side by side, and errors where one becomes shorter
columns    columns cut into shards, mapped as one array
build      a directory from many units: parallel, in order, resumable
cache      caches named by content
tokens     the token store
instances  the instance store
entropy    figures about a tokenized text
"""
