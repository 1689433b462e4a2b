"""Text files to sentences.

corpus        files, the parts they are read in, their documents
formats       WikiExtractor, WikiText, books, plain lines
lines         checked lines of files, packed or not, with file and line number for errors
sentences     running text into sentences
prose         English prose among code and tables; whole sentences
examples      sentences with a word masked, for a look at a model
"""
