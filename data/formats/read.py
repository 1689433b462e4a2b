"""One reader for files of pretraining instances, whatever their format."""

from __future__ import annotations

from typing import Callable, Iterator

from base.errors import InputError
from data.formats import hdf5, npz, record_files
from data.formats.blocks import Damage, FileFacts, RawBlock, checked
from data.formats.identify import identify
from data.formats.records import PretrainingArrays
from data.options import MAX_POSITIONS

__all__ = ["FileFacts", "check_limits", "peek", "read_instances"]


def peek(path: str) -> FileFacts:
    """Format, number of instances and widths, from headers or the first record alone.

    Raises InputError for a file of no known format, or damaged there.
    """
    kind = identify(path)
    if kind.format == "npz":
        return npz.peek(path)
    if kind.format == "hdf5":
        return hdf5.peek(path)
    return record_files.peek(path, kind.format, kind.packed)


def check_limits(
    name: str, width: int, predictions: int, max_seq_length: int | None, max_predictions: int | None
) -> None:
    """Raises InputError if instances as wide as this break a limit that the user gave; None is no limit.

    `name` is the file (or store), `width` the tokens and `predictions` the masked positions it has room for
    in a row. Pairs and masks that are stored cannot be made shorter: to ignore the option would be wrong.
    """
    if max_seq_length is not None and max_seq_length > MAX_POSITIONS:
        raise InputError(f"--max_seq_length {max_seq_length}: BERT has {MAX_POSITIONS} positions")
    if max_seq_length is not None and width > max_seq_length:
        raise InputError(
            f"--max_seq_length {max_seq_length}: {name} holds sequences of up to {width} tokens, and what "
            "files hold is not cut; give that length or more, or make the files anew"
        )
    if max_predictions is not None and predictions > max_predictions:
        raise InputError(
            f"--max_predictions_per_seq {max_predictions}: {name} holds up to {predictions} predictions a "
            "sequence, and the masks of files stay as they are; leave the option out, or make the files anew"
        )


def read_instances(
    path: str, vocab_size: int, on_bad: Callable[[str, int], None] | None = None
) -> Iterator[PretrainingArrays]:
    """The file's instances in its order, checked, in blocks of 1 to BLOCK_INSTANCES.

    A block is as wide as the file's rows (TFRecord and OFRecord: as the block's widest record). Memory does
    not depend on the file's size. Instances count from 0 in messages.

    Raises InputError naming the file and the instance for whatever is wrong. With `on_bad`, an instance that
    is bad is left out instead, and `on_bad(message, number of instances)` called: in the order of the file,
    where the format tells how far the damage reaches. Damage to the file as a whole (a missing array, a
    compressed npz array) is an InputError all the same.
    """

    def report(message: str, count: int) -> None:
        if on_bad is None:
            raise InputError(message)
        on_bad(message, count)

    for item in _items(path):
        if isinstance(item, Damage):
            report(f"{path}: {item.message}", item.lost)
            continue
        arrays = checked(path, item, vocab_size, report)
        if len(arrays.valid_lengths):
            yield arrays


def _items(path: str) -> Iterator[RawBlock | Damage]:
    kind = identify(path)
    if kind.format == "npz":
        return npz.blocks(path)
    if kind.format == "hdf5":
        return hdf5.blocks(path)
    return record_files.blocks(path, kind.format, kind.packed)
