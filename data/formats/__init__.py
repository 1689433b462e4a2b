"""Files of sequences with masks: npz, HDF5, TFRecord, OFRecord.

find                  the files of a pattern that hold instances
identify              a file's format, by its content
records               instances as arrays, the common form of all formats
read, write           one reader and one writer for all formats
npz                   GluonNLP's format
hdf5                  NVIDIA's format
record_files          Google's TFRecord and OneFlow's OFRecord
framing               records of bytes in a file, compressed or not
messages              the protobuf messages in records
packed_lists          many messages decoded at once
blocks                checks of every value
spool                 rows kept until their number and widths are known
export, export_files  a store into files of one of the formats
"""
