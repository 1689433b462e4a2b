"""Directories of columns on disk, built once in parallel and mapped by every rank.

manifest   JSON files beside the columns
parts      what workers make of a unit, and the journal
build      a directory from many units: parallel, in order, resumable
mapped     files mapped side by side, and errors where one becomes shorter
columns    columns cut into shards, mapped as one array
cache      caches named by content
tokens     the token store
instances  the instance store
entropy    figures about a tokenized text
"""
