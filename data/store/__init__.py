"""Directories of columns on disk, built once in parallel and mapped by every rank.

cache         stores named by content, built by one process while others wait
build         a store from many inputs: parallel, in order, resumable
journal       the progress of a build, for the next start
parts         the result of one worker, as files
tokenize      a part of a text into the columns of a token store
columns       arrays in shard files, appended once
mapped        shard files side by side in the address space
tokens        the token store
entropy       unigram entropy, and the least loss without context
instances     the instance store
from_files    an instance store from files of any format
from_tokens   an instance store from a token store, with static masks
identify      the store that named files belong to, and whether it is whole
"""
