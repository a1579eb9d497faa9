"""Values of Python's exact builtin types as bytes: how arguments and results cross from one process to another.

The bytes may come from a program that wants to deceive or to hurt, so reading them runs nothing of its making: there
are no classes, no references and no code in them, and size, number of nodes, depth and hash collisions are bounded. A
value has one encoding, and only that encoding is read back. Nodes are one letter and, where they need it, a length or a
count of four bytes, big-endian. This file runs inside sandboxes too and imports nothing of rft.

What is lost: two references to one list arrive as two lists. What is kept: the order of a dict, the sign of zero, the
bits of NaN, lone surrogates, and bool apart from int.
"""

import struct
from _collections_abc import Callable  # loaded with the interpreter; typing and collections would double its start

MAX_BYTES = 8 << 20  # of one encoded value
MAX_NODES = (
    400_000  # scalars and containers in it, which bounds the memory of many small ones (an empty set has 216 bytes)
)
MAX_DEPTH = 150  # far below the recursion limit of 1,000, so that == on what was read cannot reach it
MAX_COLLISIONS = (
    64  # keys of one hash in a container: integers of one hash are easily made, and each costs all the others
)

TYPES = (bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, range, object, type(None))
_TYPE_NAMES = {kind: kind.__name__ for kind in TYPES}
_TYPES_BY_NAME = {name: kind for kind, name in _TYPE_NAMES.items()}
_SINGLES = {None: b"N", True: b"T", False: b"F", Ellipsis: b"E", NotImplemented: b"M"}
_BY_LETTER = {letter[0]: value for value, letter in _SINGLES.items()}


class Unsupported(TypeError):
    """A value that is none of the exact builtin types."""


class TooLarge(ValueError):
    """A value or an encoding beyond a bound; a container that contains itself is one too."""


class Malformed(ValueError):
    """Bytes that `encode` does not write."""


class Handle:
    """Stands for an object that stays where it is: a number which the process that keeps it has given."""

    __slots__ = ("number",)

    def __init__(self, number: int):
        self.number = number


def encode(value: object, opaque: Callable | None = None, max_bytes: int = MAX_BYTES) -> bytes:
    """The encoding of `value`. `opaque` gives a builtin value or a `Handle` for an object of another type.

    Raises Unsupported (also where `opaque` gives none) and TooLarge.
    """
    return b"".join(_Writer(opaque, max_bytes).pieces_of(value, 0))


class _Writer:
    def __init__(self, opaque: Callable | None, max_bytes: int):
        self.opaque, self.bytes_left, self.nodes_left = opaque, max_bytes, MAX_NODES

    def piece(self, letter: bytes, count: int | None = None, body: bytes = b"") -> bytes:
        self.nodes_left -= 1
        self.bytes_left -= 1 + (count is not None) * 4 + len(body)
        if self.nodes_left < 0 or self.bytes_left < 0:
            raise TooLarge(f"a value of more than {MAX_NODES} nodes or of too many bytes")
        return letter if count is None else letter + struct.pack(">I", count) + body

    def measured(self, letter: bytes, size: int, body: Callable) -> list[bytes]:
        """A node whose body is not made if it is too large by its least size."""
        if size > self.bytes_left:
            raise TooLarge(f"a value of {size} bytes")
        made = body()
        return [self.piece(letter, len(made), made)]

    def pieces_of(self, value: object, depth: int) -> list[bytes]:
        if depth > MAX_DEPTH:
            raise TooLarge(f"nested deeper than {MAX_DEPTH}")
        kind = type(value)
        if kind is bool or value is None or value is Ellipsis or value is NotImplemented:
            return [self.piece(_SINGLES[value])]
        if kind is int:
            size = (
                value.bit_length() // 8 + 1
            )  # two's complement: no digits, whose number Python limits and whose cost grows
            return self.measured(b"i", size, lambda: value.to_bytes(size, "big", signed=True))
        if kind is float:
            return [self.piece(b"f", 8, struct.pack(">d", value))]
        if kind is complex:
            return [self.piece(b"c", 16, struct.pack(">dd", value.real, value.imag))]
        if kind is str:
            return self.measured(b"s", len(value), lambda: value.encode("utf-8", "surrogatepass"))
        if kind is bytes or kind is bytearray:
            return self.measured(b"b" if kind is bytes else b"a", len(value), lambda: bytes(value))
        if kind is list or kind is tuple:
            pieces = [self.piece(b"l" if kind is list else b"t", len(value))]
            for item in value:
                pieces += self.pieces_of(item, depth + 1)
            return pieces
        if kind is set or kind is frozenset:
            head = self.piece(b"u" if kind is set else b"z", len(value))
            return [head, *sorted(b"".join(self.pieces_of(item, depth + 1)) for item in value)]
        if kind is dict:
            pieces = [self.piece(b"d", len(value))]
            for key, item in value.items():
                pieces += self.pieces_of(key, depth + 1)
                pieces += self.pieces_of(item, depth + 1)
            return pieces
        if kind is range:
            parts = [value.start, value.stop, value.step]
            return [self.piece(b"r", 3), *(piece for part in parts for piece in self.pieces_of(part, depth + 1))]
        if kind is type and value in _TYPE_NAMES:
            name = _TYPE_NAMES[value].encode()
            return [self.piece(b"y", len(name), name)]
        if kind is Handle:
            return self.measured(b"h", 4, lambda: struct.pack(">I", value.number))
        if self.opaque is None:
            raise Unsupported(f"a value of type {kind.__name__}")
        return self.pieces_of(self.opaque(value), depth + 1)


def decode(data: bytes, handle: Callable | None = None, max_nodes: int = MAX_NODES) -> object:
    """The value of an encoding, whoever wrote it; `handle` gives the object of a handle's number.

    Raises Malformed, TooLarge, and Unsupported for a handle where none is known.
    """
    if len(data) > MAX_BYTES:
        raise TooLarge(f"{len(data)} bytes, at most {MAX_BYTES}")
    reader = _Reader(data, handle, min(max_nodes, MAX_NODES))
    value = reader.value(0)
    if reader.at != len(data):
        raise Malformed(f"{len(data) - reader.at} bytes behind the value")
    return value


class _Reader:
    def __init__(self, data: bytes, handle: Callable | None, max_nodes: int):
        self.data, self.at, self.handle, self.nodes_left = data, 0, handle, max_nodes

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise Malformed("the bytes end within a value")
        self.at += size
        return self.data[self.at - size : self.at]

    def items(self, count: int, depth: int) -> list[object]:
        if count > min(len(self.data) - self.at, self.nodes_left):  # each takes a byte and a node at least
            raise Malformed("more items than bytes") if count <= self.nodes_left else TooLarge(f"{count} items")
        return [self.value(depth + 1) for _ in range(count)]

    def value(self, depth: int) -> object:
        self.nodes_left -= 1
        if self.nodes_left < 0 or depth > MAX_DEPTH:
            raise TooLarge("a value of more nodes or deeper than allowed")
        letter = self.take(1)
        if letter[0] in _BY_LETTER:
            return _BY_LETTER[letter[0]]
        (count,) = struct.unpack(">I", self.take(4))
        if letter in b"lt":
            return self.items(count, depth) if letter == b"l" else tuple(self.items(count, depth))
        if letter in b"uz":
            return self.set_of(count, depth, set if letter == b"u" else frozenset)
        if letter == b"d":
            items = self.items(2 * count, depth)
            keys = _checked_keys(items[::2])
            return dict(zip(keys, items[1::2], strict=True))
        if letter == b"r":
            parts = self.items(3, depth) if count == 3 else []
            if [type(part) for part in parts] != [int] * 3 or parts[2] == 0:
                raise Malformed("a range is of three integers")
            return range(*parts)
        return self.scalar(letter, self.take(count))

    def set_of(self, count: int, depth: int, kind: type) -> object:
        items, last = [], b""
        if count > min(len(self.data) - self.at, self.nodes_left):
            raise TooLarge(f"{count} items")
        for _ in range(count):
            start = self.at
            items.append(self.value(depth + 1))
            if (this := self.data[start : self.at]) <= last:
                raise Malformed("a set whose items are not in order")
            last = this
        return kind(_checked_keys(items))

    def scalar(self, letter: bytes, body: bytes) -> object:
        if letter == b"i":
            value = int.from_bytes(body, "big", signed=True)
            if len(body) != value.bit_length() // 8 + 1:
                raise Malformed("an integer of another length")
            return value
        if letter == b"s":
            try:
                return body.decode("utf-8", "surrogatepass")
            except UnicodeDecodeError as error:
                raise Malformed("a string that is not UTF-8") from error
        if letter == b"f" and len(body) == 8:
            return struct.unpack(">d", body)[0]
        if letter == b"c" and len(body) == 16:
            return complex(*struct.unpack(">dd", body))
        if letter == b"b":
            return body
        if letter == b"a":
            return bytearray(body)
        if letter == b"y" and (name := body.decode("latin-1")) in _TYPES_BY_NAME:
            return _TYPES_BY_NAME[name]
        if letter == b"h" and len(body) == 4:
            if self.handle is None:
                raise Unsupported("an object that has no encoding")
            return self.handle(struct.unpack(">I", body)[0])
        raise Malformed(f"no node is written {letter!r} with {len(body)} bytes")


def _checked_keys(keys: list[object]) -> list[object]:
    """Keys that make a table in linear time: hashable, no two equal, few of one hash."""
    counts: dict[int, int] = {}
    try:
        for key in keys:
            hashed = hash(key)
            counts[hashed] = counts.get(hashed, 0) + 1
            if counts[hashed] > MAX_COLLISIONS:
                raise TooLarge(f"more than {MAX_COLLISIONS} keys of one hash")
        if len(set(keys)) != len(keys):
            raise Malformed("two equal keys")
    except TypeError as error:
        raise Malformed(f"a key that is not hashable: {error}") from error
    return keys


def nodes(value: object) -> int:
    """How many nodes the encoding of a builtin value has. What equals it has as many."""
    if isinstance(value, list | tuple | set | frozenset):
        return 1 + sum(map(nodes, value))
    if isinstance(value, dict):
        return 1 + sum(nodes(key) + nodes(item) for key, item in value.items())
    return 4 if isinstance(value, range) else 1


def same(a: object, b: object) -> bool:
    """What Python's `==` says of two values that were decoded or written as literals: 1 == 1.0 == True, NaN is unequal.

    A decoded value is of builtin types throughout, so nothing of a program's making runs here.
    """
    return bool(a == b)
