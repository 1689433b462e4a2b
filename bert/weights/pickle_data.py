"""A pickle read as data: nothing that stands in it is imported, called or executed.

Python's own unpickler imports what a pickle names and calls it with arguments from the pickle, which is how a
file runs `os.system`. This one has those of its operations that build numbers, strings, tuples, lists and
dicts, and other ones where the library's call, import or allocate. A name is a `Global`, an inert word, to
which a subclass gives meaning. Everything else in a pickle is `OPAQUE`: long strings, bytes, sets, objects
whose content nobody needs.

Time and memory are limited whatever the pickle is: the number of operations, the length of strings, and keys
of dicts, which are strings and numbers, since hashing nested tuples can take exponential time.
"""

from __future__ import annotations

import pickle
from typing import Any, Callable, NamedTuple

from bert.weights.tensors import MAX_NAME, Damaged, Source, shown

MAX_OPERATIONS = 250_000  # BERT-large with Adam's moments and a second copy takes 67,000
_MAX_STRING = 4 * MAX_NAME  # bytes; a longer one is OPAQUE
_MAX_KEY = 1 << 60  # of those above, any number have the same hash

# Operations that torch.save writes; of protocols 2 to 5, and none of text.
_OPERATIONS = """
    PROTO FRAME STOP NONE NEWTRUE NEWFALSE BININT1 BININT2 BININT BINFLOAT LONG1
    SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINSTRING BINSTRING
    SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8
    MARK POP POP_MARK DUP BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET
    EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 TUPLE EMPTY_LIST APPEND APPENDS
    EMPTY_DICT SETITEM SETITEMS EMPTY_SET ADDITEMS FROZENSET
    GLOBAL STACK_GLOBAL REDUCE NEWOBJ NEWOBJ_EX BUILD BINPERSID
"""
# What the library's operations raise for a stack without an element, a memo without an entry, other types.
_MISFITS = (IndexError, KeyError, TypeError, ValueError, AttributeError, pickle.UnpicklingError)


class Global(NamedTuple):
    """Name of a function or class, such as "collections.OrderedDict"."""

    name: str


class _Opaque:
    """Takes, and drops, what a pickle adds to it."""

    def append(self, item: Any) -> None:
        """Drops an item."""

    add = extend = append


OPAQUE = _Opaque()


class _Counted(dict[int, Callable[[Any], None]]):
    """Operations by their code. A look-up is an operation of the pickle, and there is a limit to them."""

    _left = MAX_OPERATIONS

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        self._left -= 1
        if self._left < 0:
            raise Damaged(f"its pickle has more than {MAX_OPERATIONS} operations")
        if code not in self:
            raise Damaged(f"its pickle has the operation {bytes([code])!r}, which torch.save does not write")
        return super().__getitem__(code)


def _sized(layout: str, is_text: bool) -> Callable[[DataUnpickler], None]:
    """The operation of a string, or of bytes, in front of which the length stands so."""

    def load(self: DataUnpickler) -> None:
        (size,) = self.source.unpack(layout)
        if is_text and size <= _MAX_STRING:
            self.append(self.source.read(size).decode("utf-8", "surrogatepass"))
        else:
            self.source.skip(size)
            self.append(OPAQUE)

    return load


# The library's class in C would not do: nobody can replace its operations, it believes any index of a memo,
# and hashes any key.
_Library: Any = pickle._Unpickler


class DataUnpickler(_Library):
    """The unpickler that builds the value of a pickle. Its methods have the library's names, by which the
    library's own ones call them.

    A subclass says what names, calls and persistent ids mean, by which a pickle refers to something outside
    of it: `find_class`, `call` and `persistent_load`, which raise Damaged or InputError for what must not be.

    Args:
        source: the pickle; what follows its end is not consumed.
    """

    def __init__(self, source: Source):
        super().__init__(source)
        self.source = source
        codes = [getattr(pickle, name)[0] for name in _OPERATIONS.split()]
        methods = {code: _Library.dispatch[code].__name__ for code in codes}
        self.dispatch = _Counted({code: getattr(type(self), name) for code, name in methods.items()})

    def value(self) -> Any:
        """The value. Raises Damaged: it ends too early, or has an unknown operation or too many."""
        try:
            return self.load()
        except _MISFITS as error:
            raise Damaged("its pickle's operations do not fit together") from error

    def call(self, function: Global, arguments: tuple) -> Any:
        """The meaning of a Global called with these arguments."""
        raise NotImplementedError

    load_short_binunicode = load_short_binstring = _sized("B", is_text=True)  # binstring: of Python 2
    load_binunicode, load_binunicode8 = _sized("<I", is_text=True), _sized("<Q", is_text=True)
    load_binstring = _sized("<i", is_text=True)
    load_short_binbytes, load_binbytes = _sized("B", is_text=False), _sized("<I", is_text=False)
    load_binbytes8 = load_bytearray8 = _sized("<Q", is_text=False)

    def load_frame(self) -> None:
        self.source.skip(8)  # its size, of which the library would read all at once

    def load_empty_set(self) -> None:
        self.append(OPAQUE)

    def load_frozenset(self) -> None:
        self.pop_mark()
        self.append(OPAQUE)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def load_setitems(self) -> None:
        self._set(self.pop_mark())

    def _set(self, items: list) -> None:
        target = self.stack[-1]
        if target is OPAQUE:
            return
        if not isinstance(target, dict):
            raise Damaged("its pickle sets items of something that is no dict")
        if len(items) % 2:
            raise Damaged("its pickle has a key without a value")
        for key, value in zip(items[::2], items[1::2]):
            if not isinstance(key, (str, int, float, type(None), Global, _Opaque)):
                raise Damaged("a key of a dict is neither a string nor a number")
            if key != key:  # Python 3.9 gives all NaNs one hash
                raise Damaged("a key of a dict is not a number")
            if isinstance(key, int) and abs(key) > _MAX_KEY:
                raise Damaged("a key of a dict is a huge number")
            target[key] = value

    def load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if function is OPAQUE:
            self.append(OPAQUE)
        elif isinstance(function, Global) and type(arguments) is tuple:
            self.append(self.call(function, arguments))
        else:
            raise Damaged("its pickle calls something that is no function")

    load_newobj = load_reduce  # a new object, as by calling its class

    def load_newobj_ex(self) -> None:
        self.stack.pop()  # arguments by name
        self.load_reduce()

    def load_build(self) -> None:
        # Attributes, such as the _metadata of a state dict: no tensor of a model is there.
        self.stack.pop()
        if isinstance(self.stack[-1], (Global, int, str)):
            raise Damaged(f"its pickle gives attributes to {shown(str(self.stack[-1]))}")
