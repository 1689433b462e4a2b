"""Text to tokens to instances to batches, without MXNet.

embedded, prose    command: a corpus from CPython's own documentation
text/              text files to sentences
train_vocab        command: a WordPiece or SentencePiece vocabulary from text
tokenizing/        sentences to token ids
prepare            command: text to a token store, or any input to files with masks
prepare_options    the options of data.prepare
convert_npz        command: GluonNLP's pickled npz files to padded arrays
formats/           files of sequences with masks, as other projects write them
store/             directories of columns, memory-mapped
inspect            command: the contents of a store or of files, before training on them
inspection/        the parts of data.inspect
pretraining/       pairs, masks and batches
"""
