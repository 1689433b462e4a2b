"""Instances for the formats' tests, and encoders of the formats that share no code with data.formats."""

from __future__ import annotations

import struct

import h5py
import numpy as np

from data.formats.records import PretrainingArrays

VOCAB_SIZE = 30000
TOKENS = ("input_ids", "input_mask", "segment_ids")
PREDICTIONS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


def ragged(count, width=24, predictions=4, seed=0, vocab_size=VOCAB_SIZE):
    """Instances as dicts of lists without padding, shaped like real ones: [CLS] A [SEP] B [SEP]."""
    generator = np.random.default_rng(seed)
    instances = []
    for index in range(count):
        length = width if index == 0 else int(generator.integers(5, width + 1))
        split = int(generator.integers(2, length - 1))
        masked = predictions if index == 0 else int(generator.integers(1, min(predictions, length - 3) + 1))
        positions = np.sort(generator.choice(np.arange(1, length - 1), masked, replace=False))
        instances.append(
            {
                "input_ids": generator.integers(1, vocab_size, length).tolist(),
                "input_mask": [1] * length,
                "segment_ids": [0] * split + [1] * (length - split),
                "masked_lm_positions": positions.tolist(),
                "masked_lm_ids": generator.integers(0, vocab_size, masked).tolist(),
                "masked_lm_weights": [1.0] * masked,
                "next_sentence_labels": [int(generator.integers(0, 2))],
            }
        )
    return instances


def columns(instances):
    """int32 and float32 columns padded with 0 by name; valid_lengths and input_mask both."""
    out = {}
    for name in (*TOKENS, *PREDICTIONS):
        rows = [instance[name] for instance in instances]
        out[name] = np.zeros((len(rows), max(map(len, rows))), np.float32 if "weights" in name else np.int32)
        for index, row in enumerate(rows):
            out[name][index, : len(row)] = row
    out["next_sentence_labels"] = np.array([i["next_sentence_labels"][0] for i in instances], np.int32)
    out["valid_lengths"] = np.array([len(i["input_ids"]) for i in instances], np.int32)
    return out


def arrays(instances):
    """The PretrainingArrays that reading must give."""
    wide = columns(instances)
    kinds = (np.uint16, np.uint8, np.uint16, np.uint16, np.float32, np.uint8, np.int32)
    names = PretrainingArrays._fields
    return PretrainingArrays(*(wide[name].astype(kind) for name, kind in zip(names, kinds)))


def joined(blocks):
    """Blocks as one, narrower ones padded with 0."""
    out = []
    for parts in zip(*blocks):
        width = max(part.shape[1] for part in parts) if parts[0].ndim == 2 else 0
        pad = [((0, 0), (0, width - part.shape[1])) if width else ((0, 0),) for part in parts]
        out.append(np.concatenate([np.pad(part, amount) for part, amount in zip(parts, pad)]))
    return PretrainingArrays(*out)


def assert_same(found, expected):
    """Two named tuples of arrays have the same types, shapes and numbers."""
    for name, left, right in zip(expected._fields, found, expected):
        assert left.dtype == right.dtype and left.shape == right.shape, name
        assert (left == right).all(), name


# GluonNLP: numpy.savez_compressed of the seven arrays (scripts/bert/data/create_pretraining_data.py).
def save_npz(path, instances, compressed=True, **changes):
    wide = {**columns(instances), **changes}
    wanted = [name for name in PretrainingArrays._fields if wide[name] is not None]
    (np.savez_compressed if compressed else np.savez)(path, **{name: wide[name] for name in wanted})


# NVIDIA: create_dataset(..., dtype='i4' or 'i1', compression='gzip') for each of six names.
HDF5_TYPES = {
    "input_ids": "i4",
    "input_mask": "i1",
    "segment_ids": "i1",
    "masked_lm_positions": "i4",
    "masked_lm_ids": "i4",
    "next_sentence_labels": "i1",
}


def save_hdf5(path, instances, compression="gzip", **changes):
    wide = {**columns(instances), **changes}
    with h5py.File(path, "w") as file:
        for name, kind in HDF5_TYPES.items():
            if wide[name] is not None:
                dtype = wide[name].dtype if name in changes else kind
                file.create_dataset(name, data=wide[name], dtype=dtype, compression=compression)


# Protobuf by hand, from the encoding's specification (https://protobuf.dev/programming-guides/encoding).
def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number, content):
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def integer_list(values, packed=True):
    if packed:
        return field(1, b"".join(varint(value) for value in values))
    return b"".join(varint(1 << 3) + varint(value) for value in values)


def float_list(values, packed=True, code="<f"):
    numbers = [struct.pack(code, value) for value in values]
    if packed:
        return field(1, b"".join(numbers))
    return b"".join(varint(1 << 3 | (5 if code == "<f" else 1)) + number for number in numbers)


def padded(instance, width, predictions):
    """As Google's script pads with 0; None leaves an instance as it is."""
    out = dict(instance)
    for name in TOKENS if width else ():
        out[name] = out[name] + [0] * (width - len(out[name]))
    for name in PREDICTIONS if predictions else ():
        out[name] = out[name] + [0] * (predictions - len(out[name]))
    return out


def entries(instance, integer_kind, packed=True, float_kind=2):
    """map<string, Feature>: one field 1 for each entry, with the key as 1 and the Feature as 2."""
    out = []
    for name, values in instance.items():
        is_float = name == "masked_lm_weights" or (values and type(values[0]) is float)
        if is_float:
            feature = field(float_kind, float_list(values, packed, "<f" if float_kind == 2 else "<d"))
        else:
            feature = field(integer_kind, integer_list(values, packed))
        out.append(field(1, field(1, name.encode()) + field(2, feature)))
    return b"".join(out)


def example(instance, packed=True):
    """tf.train.Example{features=1{map feature=1}}, int64_list is 3."""
    return field(1, entries(instance, 3, packed))


def ofrecord(instance, packed=True, integer_kind=4, float_kind=2):
    """oneflow.OFRecord{map feature=1}, int32_list is 4, int64_list 5, double_list 3."""
    return entries(instance, integer_kind, packed, float_kind)


def _crc_of_byte(crc):
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc


_CRC_OF_BYTE = [_crc_of_byte(byte) for byte in range(256)]


def crc32c(data):
    """CRC-32C with the reflected polynomial 0x82F63B78 (RFC 3720, appendix B.4), byte by byte."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_OF_BYTE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def masked_crc(data):
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF)


def tfrecord_frame(data):
    length = struct.pack("<Q", len(data))
    return length + masked_crc(length) + data + masked_crc(data)


def ofrecord_frame(data):
    return struct.pack("<q", len(data)) + data


def record(format, instance):
    """An instance in a frame of "tfrecord" or "ofrecord"."""
    if format == "tfrecord":
        return tfrecord_frame(example(instance))
    return ofrecord_frame(ofrecord(instance, integer_kind=5))
