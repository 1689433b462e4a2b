"""Files of pretraining instances: npz, HDF5, TFRecord, OFRecord.

records                  instances as arrays, the common form of all formats
identify                 formats, by a file's content
blocks                   blocks of a file and the checks of their values
framing                  records of bytes in a file
packed_lists             many packed lists of numbers decoded at once
messages                 protobuf messages inside the records
npz, hdf5, record_files  one module for each format or pair of formats
spool                    instances kept until their number is known
read, write              one reader and one writer for all formats
"""
