"""Files of pretraining instances in everyone's formats: npz, HDF5, TFRecord, OFRecord."""
