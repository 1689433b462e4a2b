"""Files of pretraining instances: npz, HDF5, TFRecord, OFRecord.

records                  instances as arrays, the common form of all formats; checks of a file's values
npz, hdf5, record_files  one module for each format or pair of formats
files                    one reader, which identifies a file by its content, and one writer, for all formats
"""
