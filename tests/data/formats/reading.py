"""Reading whole files, also those that are expected to be bad."""

from __future__ import annotations

import pytest

from base.errors import InputError
from data.formats.files import read_instances
from tests.data.formats.samples import VOCAB_SIZE, joined


def read(path):
    """All instances as one block."""
    return joined(list(read_instances(str(path), VOCAB_SIZE)))


def refused(path, message):
    """Strict reading fails with this one line, which names the file."""
    with pytest.raises(InputError, match=message) as caught:
        list(read_instances(str(path), VOCAB_SIZE))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def skipping(path):
    """The blocks of good instances, and the arguments of each call of on_bad."""
    skipped = []
    blocks = list(read_instances(str(path), VOCAB_SIZE, lambda *bad: skipped.append(bad)))
    return blocks, skipped
