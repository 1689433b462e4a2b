"""English text out of Debian packages.

packages       fetching and unpacking without installing
sources        the table: package, reader, licence
dictionaries   GCIDE, WordNet
books          the Bible, Jane Austen's novels, Python's documentation, HTML, a game's conversations
"""
