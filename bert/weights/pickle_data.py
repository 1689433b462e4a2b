"""A pickle read as data: nothing that stands in it is imported, called or executed.

Python's own unpickler imports what a pickle names and calls it with arguments from the pickle, which is how a
file runs `os.system`. This machine knows the operations of protocols 2 to 5 (Lib/pickletools.py) as far as
they build numbers, strings, tuples, lists and dicts. A name is a `Global`, an inert word; a function that
knows a few names gives meaning to calls. Everything else in a pickle is `OPAQUE`: long strings, bytes, sets,
objects whose content nobody needs.

Time and memory are limited whatever the pickle is: the number of operations, the length of strings, and keys
of dicts, which are strings and numbers, since hashing nested tuples can take exponential time.
"""

from __future__ import annotations

import os
import struct
from typing import IO, Any, Callable, NamedTuple

from bert.weights.stored import MAX_NAME, Damaged, shown

MAX_OPERATIONS = 250_000  # BERT-large with Adam's moments and a second copy takes 67,000
_MAX_STRING = 4 * MAX_NAME  # bytes; a longer one is OPAQUE
_MAX_KEY = 1 << 60  # of those above, any number have the same hash
_MAX_PROTOCOL = 5


class Global(NamedTuple):
    """Name of a function or class, such as "collections.OrderedDict"."""

    name: str


class _Opaque:
    def __repr__(self) -> str:
        return "OPAQUE"


OPAQUE = _Opaque()


class Source:
    """Bytes of a file from where it stands to `end`."""

    def __init__(self, file: IO[bytes], end: int):
        self._file, self._left = file, end - file.tell()

    def skip(self, size: int) -> None:
        """Passes over `size` bytes. Raises Damaged where there are fewer."""
        self._count(size)
        self._file.seek(size, os.SEEK_CUR)

    def take(self, size: int) -> bytes:
        """The next `size` bytes. Raises Damaged where there are fewer."""
        self._count(size)
        data = self._file.read(size)
        if len(data) != size:
            raise Damaged("it ends too early")
        return data

    def line(self) -> str:
        """The next line, without its end. Raises Damaged."""
        data = self._file.readline(min(self._left, MAX_NAME))
        self._left -= len(data)
        if not data.endswith(b"\n"):
            raise Damaged("a name has no end")
        return _text(data[:-1])

    def _count(self, size: int) -> None:
        if not 0 <= size <= self._left:
            raise Damaged("it ends too early")
        self._left -= size


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise Damaged("a string is not UTF-8") from error


class PickleReader:
    """The machine that builds the value of a pickle.

    Args:
        source: the pickle; what follows its end is not consumed.
        call: gives meaning to a Global called with a tuple of arguments; raises Damaged where there is none.
        name: checks a Global where the pickle names it; raises for one that must not stand there.
        persistent: gives meaning to a persistent id, by which a pickle refers to something outside of it.
    """

    def __init__(
        self,
        source: Source,
        call: Callable[[Global, tuple], Any],
        name: Callable[[Global], None],
        persistent: Callable[[Any], Any],
    ):
        self._source = source
        self._call, self._name, self._persistent = call, name, persistent
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._operations = self._table()

    def read(self) -> Any:
        """The value. Raises Damaged: it ends too early, or has an unknown operation or too many."""
        try:
            for _ in range(MAX_OPERATIONS):
                code = self._source.take(1)
                if code == b".":
                    return self._stack.pop()
                if code not in self._operations:
                    raise Damaged(f"its pickle has the operation {code!r}, which torch.save does not write")
                self._operations[code]()
        except (IndexError, KeyError) as error:  # a stack without an element, a memo without an entry
            raise Damaged("its pickle's operations do not fit together") from error
        raise Damaged(f"its pickle has more than {MAX_OPERATIONS} operations")

    def _table(self) -> dict[bytes, Callable[[], None]]:
        push, number = self._stack.append, self._number
        return {
            b"\x80": self._protocol,
            b"\x95": lambda: self._source.skip(8),  # FRAME
            # constants and numbers
            b"N": lambda: push(None),
            b"\x88": lambda: push(True),
            b"\x89": lambda: push(False),
            b"K": lambda: push(number("B")),
            b"M": lambda: push(number("<H")),
            b"J": lambda: push(number("<i")),
            b"G": lambda: push(number(">d")),
            b"\x8a": lambda: push(int.from_bytes(self._source.take(number("B")), "little", signed=True)),
            # strings; those of Python 2 are U and T
            b"\x8c": lambda: self._string("B"),
            b"X": lambda: self._string("<I"),
            b"\x8d": lambda: self._string("<Q"),
            b"U": lambda: self._string("B"),
            b"T": lambda: self._string("<i"),
            # bytes
            b"C": lambda: self._bytes("B"),
            b"B": lambda: self._bytes("<I"),
            b"\x8e": lambda: self._bytes("<Q"),
            b"\x96": lambda: self._bytes("<Q"),
            # stack and memo
            b"(": lambda: self._marks.append(len(self._stack)),
            b"0": self._drop,
            b"1": self._drop_since_mark,
            b"2": lambda: push(self._stack[-1]),
            b"q": lambda: self._remember(number("B")),
            b"r": lambda: self._remember(number("<I")),
            b"\x94": lambda: self._remember(len(self._memo)),
            b"h": lambda: push(self._memo[number("B")]),
            b"j": lambda: push(self._memo[number("<I")]),
            # containers
            b")": lambda: push(()),
            b"\x85": lambda: push(self._pop(1)),
            b"\x86": lambda: push(self._pop(2)),
            b"\x87": lambda: push(self._pop(3)),
            b"t": lambda: push(self._since_mark()),
            b"]": lambda: push([]),
            b"a": lambda: self._extend(self._pop(1)),
            b"e": lambda: self._extend(self._since_mark()),
            b"}": lambda: push({}),
            b"s": lambda: self._set_items(self._pop(2)),
            b"u": lambda: self._set_items(self._since_mark()),
            b"\x8f": lambda: push(OPAQUE),  # a set
            b"\x90": lambda: self._extend(self._since_mark()),
            b"\x91": self._frozen_set,
            # names and what would be calls
            b"c": lambda: self._global(self._source.line(), self._source.line()),
            b"\x93": lambda: self._global(*self._pop(2)),
            b"R": lambda: self._reduce(*self._pop(2)),
            b"\x81": lambda: self._reduce(*self._pop(2)),  # a new object, as by calling its class
            b"\x92": self._new_object,
            b"b": self._state,
            b"Q": lambda: push(self._persistent(self._pop(1)[0])),
        }

    def _number(self, layout: str) -> Any:
        return struct.unpack(layout, self._source.take(struct.calcsize(layout)))[0]

    def _protocol(self) -> None:
        if self._number("B") > _MAX_PROTOCOL:
            raise Damaged("its pickle is of an unknown protocol")

    def _string(self, layout: str) -> None:
        size = self._number(layout)
        if size > _MAX_STRING:
            self._source.skip(size)
            self._stack.append(OPAQUE)
        else:
            self._stack.append(_text(self._source.take(size)))

    def _bytes(self, layout: str) -> None:
        self._source.skip(self._number(layout))
        self._stack.append(OPAQUE)

    def _pop(self, count: int) -> tuple:
        if len(self._stack) < count:
            raise IndexError
        items = tuple(self._stack[-count:])
        del self._stack[-count:]
        return items

    def _since_mark(self) -> tuple:
        start = self._marks.pop()
        items = tuple(self._stack[start:])
        del self._stack[start:]
        return items

    def _drop(self) -> None:
        self._pop(1)

    def _drop_since_mark(self) -> None:
        self._since_mark()

    def _remember(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _extend(self, items: tuple) -> None:
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif target is not OPAQUE:
            raise Damaged("its pickle appends to something that is no list")

    def _set_items(self, items: tuple) -> None:
        target = self._stack[-1]
        if isinstance(target, dict):
            if len(items) % 2:
                raise Damaged("its pickle has a key without a value")
            for key, value in zip(items[::2], items[1::2]):
                if not isinstance(key, (str, int, float, type(None), Global, _Opaque)):
                    raise Damaged("a key of a dict is neither a string nor a number")
                if isinstance(key, int) and abs(key) > _MAX_KEY:
                    raise Damaged("a key of a dict is a huge number")
                target[key] = value
        elif target is not OPAQUE:
            raise Damaged("its pickle sets items of something that is no dict")

    def _frozen_set(self) -> None:
        self._since_mark()
        self._stack.append(OPAQUE)

    def _global(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise Damaged("its pickle names something by what is no string")
        found = Global(f"{module}.{name}")
        self._name(found)
        self._stack.append(found)

    def _reduce(self, function: Any, arguments: Any) -> None:
        if function is OPAQUE:
            self._stack.append(OPAQUE)
        elif isinstance(function, Global) and type(arguments) is tuple:
            self._stack.append(self._call(function, arguments))
        else:
            raise Damaged("its pickle calls something that is no function")

    def _new_object(self) -> None:
        function, arguments, _ = self._pop(3)
        self._reduce(function, arguments)

    def _state(self) -> None:
        # Attributes, such as the _metadata of a state dict: no tensor of a model is there.
        self._pop(1)
        if isinstance(self._stack[-1], (Global, int, str)):
            raise Damaged(f"its pickle gives attributes to {shown(str(self._stack[-1]))}")
