"""Text to tokens to instances to batches. Nothing here imports MXNet.

embedded         command: the default corpus from CPython's own documentation; the files of a corpus
build_corpus     command: a corpus of some million words from Debian packages, or from your own text
debian           English text out of Debian packages
train_vocab      command: a vocabulary from text
options          tables of the options for data and batches
text/            text files to sentences
tokenizing/      sentences to token ids
store/           directories of columns, built once and memory-mapped
protobuf         classes of messages, described without protoc
formats/         files of instances in others' formats
opening          kind, vocabulary, samples and fingerprint of the data that options name
sharing          micro-batches of a step, shared by the ranks
pretraining/     samples to the masked batches of a rank
finetuning/      labelled examples of any kind to the batches of a rank
classification/  texts with a label or a number (GLUE, own files) to batches and scores
minimal_pairs    sentences and their wrong twins, to masked copies and accuracies
questions/       SQuAD: questions to windows, logits to answers and scores
export           instances, of files or of masked copies of a text, into others' formats
prepare          command: text to a store or to files with masks
convert_npz      command: GluonNLP's pickled npz files to plain arrays
inspection/      the parts of data.inspect
inspect          command: a look at data before training on it
"""
