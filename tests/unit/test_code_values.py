"""The encoding in which values cross between processes: nothing is lost, and hostile bytes do nothing."""

import math
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft.code import values
from rft.code.values import Handle, Malformed, TooLarge, Unsupported, decode, encode, nodes, same

TEXT = st.text(st.characters(exclude_categories=()), max_size=8)  # lone surrogates too
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 200), 1 << 200)
    | st.floats(width=64)
    | st.complex_numbers()
    | TEXT
    | st.binary(max_size=8)
    | st.sampled_from(
        [..., NotImplemented, int, type(None), range(0), range(5, -(10**30), -7), math.nan, -0.0, 10**400]
    )
)
HASHABLE = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=6)
VALUES = st.recursive(
    HASHABLE | st.builds(bytearray, st.binary(max_size=8)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(HASHABLE, inner, max_size=4)
        | st.sets(HASHABLE, max_size=4)
    ),
    max_leaves=20,
)


def exact(value):
    """Equal for two values only if types, order of dicts, signs of zeros and bits of NaN are the same."""
    kind = type(value)
    if kind in (list, tuple):
        return kind.__name__, [exact(item) for item in value]
    if kind in (set, frozenset):
        return kind.__name__, sorted((exact(item) for item in value), key=repr)
    if kind is dict:
        return kind.__name__, [(exact(key), exact(item)) for key, item in value.items()]
    if kind in (float, complex):
        return kind.__name__, struct.pack(">dd", complex(value).real, complex(value).imag)
    return kind.__name__, value


@settings(max_examples=100)
@given(VALUES)
def test_what_is_read_is_what_was_written(value):
    written = encode(value)
    read = decode(written)
    assert exact(read) == exact(value)
    assert encode(read) == written
    assert decode(written, max_nodes=nodes(value)) is not written
    with pytest.raises(TooLarge):
        decode(written, max_nodes=nodes(value) - 1)


@settings(max_examples=100)
@given(VALUES, VALUES)
def test_same_is_equality(a, b):
    read = decode(encode(b))
    assert same(a, read) == (a == read)
    assert not same(a, read) or nodes(a) == nodes(read)  # what `decode` is bounded by


@pytest.mark.parametrize(
    "a, b, equal",
    [
        (1, True, True),
        (1, 1.0, True),
        (0.0, -0.0, True),
        ([1, (2.0,)], [True, (2,)], True),
        ({1: 2}, {True: 2.0}, True),
        ({1, 2}, frozenset([2.0, 1.0]), True),
        (b"a", bytearray(b"a"), True),
        (range(0), range(5, 5), True),
        ([1], (1,), False),
        ("1", 1, False),
        (math.nan, math.nan, False),
        ([math.nan], [math.nan], False),
        (2**53 + 1, float(2**53), False),
        ("a", b"a", False),
        (int, bool, False),
    ],
)
def test_same_is_what_python_says_of_builtins(a, b, equal):
    assert same(a, decode(encode(b))) is equal


def test_a_set_has_one_encoding():
    up, down = set(), set()
    for number in range(200):  # in a table made in another order the items lie in another order
        up.add(number * 8)
        down.add((199 - number) * 8)
    assert encode(up) == encode(down)


class Deceiver(list):
    def __eq__(self, other):
        return True

    def __len__(self):
        return 10**9


def cyclic_list():
    value = []
    value.append(value)
    return value


def cyclic_dict():
    value = {}
    value["self"] = [value, value]
    return value


def nested(depth):
    value = ()
    for _ in range(depth):
        value = (value,)
    return value


def shared(times):
    value = [1, 2]
    for _ in range(times):
        value = [value, value]
    return value


REFUSED = {
    "object": (object(), Unsupported),
    "function": (len, Unsupported),
    "class": (Deceiver, Unsupported),
    "subclass": (Deceiver([1]), Unsupported),
    "generator": ((item for item in ()), Unsupported),
    "inside": ([{1: (object(),)}], Unsupported),
    "cyclic list": (cyclic_list(), TooLarge),
    "cyclic dict": (cyclic_dict(), TooLarge),
    "nested": (nested(10**6), TooLarge),
    "shared 2^100 times": (shared(100), TooLarge),
    "a long string": ("x" * (values.MAX_BYTES + 1), TooLarge),
    "many items": ([0] * (values.MAX_NODES + 1), TooLarge),
    "a big integer": (1 << (values.MAX_BYTES * 8 + 8), TooLarge),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_written_is_refused(name):
    value, error = REFUSED.pop(name)
    with pytest.raises(error):
        encode(value)
    while type(value) is tuple and value:  # a million levels at once would end the interpreter that frees them
        (value,) = value


def test_handles_are_numbers():
    assert decode(encode([object()], lambda value: Handle(7)), lambda number: number + 1) == [8]
    assert decode(encode(Deceiver([1]), list)) == [1]
    with pytest.raises(Unsupported):
        decode(encode(Handle(1)))
    with pytest.raises(TooLarge):  # something that never becomes a value
        encode(object(), lambda value: object())


def test_a_big_integer_costs_no_digits():
    """Python refuses more than 4,300 digits; the encoding has none."""
    big = 1 << (values.MAX_BYTES * 4)
    assert decode(encode(-big)) == -big
    assert same(decode(encode(10**10_000)), 10**10_000)


def head(letter, count):
    return letter + struct.pack(">I", count)


def colliding(count):
    return b"".join(sorted(encode(number * (2**61 - 1)) for number in range(1, count + 1)))


HOSTILE = {
    "nothing": b"",
    "no such letter": b"x" + bytes(4),
    "no length": b"i\0",
    "behind the value": b"NN",
    "a list of 2^32 items": head(b"l", 2**32 - 1) + b"N" * 100,
    "a set of 2^32 items": head(b"u", 2**32 - 1) + b"N" * 100,
    "a dict of 2^32 items": head(b"d", 2**32 - 1) + b"N" * 100,
    "a string of 2^32 bytes": head(b"s", 2**32 - 1) + b"x" * 100,
    "nested lists": head(b"l", 1) * 10**6 + b"N",
    "nested dicts": (head(b"d", 1) + b"N") * 10**6 + b"N",
    "an unhashable key": head(b"d", 1) + head(b"l", 0) + b"N",
    "an unhashable item": head(b"u", 1) + head(b"t", 1) + head(b"l", 0),
    "two equal keys": head(b"d", 2) + b"TN" + encode(1) + b"N",
    "two equal items": head(b"u", 2) + b"T" + encode(1),
    "items in another order": head(b"u", 2) + b"TN",
    "an integer with zeros before it": head(b"i", 2) + b"\0\1",
    "an integer of no bytes": head(b"i", 0),
    "a string that is not UTF-8": head(b"s", 1) + b"\xff",
    "a float of seven bytes": head(b"f", 7) + bytes(7),
    "a range by zero": head(b"r", 3) + encode(1) + encode(2) + encode(0),
    "a range of floats": head(b"r", 3) + encode(1.0) * 3,
    "a range of two": head(b"r", 2) + encode(1) * 2,
    "another type": head(b"y", 4) + b"type",
    "a handle": head(b"h", 4) + bytes(4),
    "one hash, set": head(b"u", 1_000) + colliding(1_000),
    "one hash, dict": head(b"d", 1_000) + b"N".join(encode(n * (2**61 - 1)) for n in range(1, 1_001)) + b"N",
    "too many bytes": bytes(values.MAX_BYTES + 1),
    "many empty sets": head(b"l", 10**6) + head(b"u", 0) * 10**6,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_refused_within_bounds(name):
    tracemalloc.start()
    with pytest.raises((Malformed, TooLarge, Unsupported)):
        decode(HOSTILE[name])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 * values.MAX_BYTES


def test_memory_is_bounded_by_nodes():
    """Empty sets are the largest objects for their bytes."""
    count = values.MAX_NODES // 20
    data = head(b"l", count) + head(b"u", 0) * count
    tracemalloc.start()
    assert len(decode(data)) == count
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300 * count


@settings(max_examples=200)
@given(
    st.binary(max_size=60) | st.lists(st.sampled_from(list(HOSTILE.values())[:-3]).map(lambda b: b[:20])).map(b"".join)
)
def test_bytes_are_refused_or_the_one_encoding_of_a_value(data):
    try:
        value = decode(data)
    except (Malformed, TooLarge, Unsupported):
        return
    assert encode(value) == data


@settings(max_examples=100)
@given(VALUES, st.data())
def test_changed_bytes_are_refused_or_another_value(value, drawn):
    written = bytearray(encode(value))
    written[drawn.draw(st.integers(0, len(written) - 1))] = drawn.draw(st.integers(0, 255))
    try:
        read = decode(bytes(written))
    except (Malformed, TooLarge, Unsupported):
        return
    assert encode(read) == written


def test_it_runs_alone():
    """Inside a sandbox there is no rft and no site-packages, and large imports would double the interpreter's start."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(values.__file__).parent)!r})
import values
value = [1, 2.5, "\\ud800", {{"a": (True, None)}}, {{3}}]
assert values.decode(values.encode(value)) == value
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "values" in loaded
    assert loaded.isdisjoint({"typing", "collections", "re", "rft"})
