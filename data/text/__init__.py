"""Text files to sentences.

corpus        files, the parts they are read in, their documents
formats       WikiExtractor, WikiText, books, plain lines
packed        text that a program has compressed
lines         checked lines, with file and line number for errors
sentences     running text into sentences
"""
