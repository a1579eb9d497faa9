"""Runs the data set's tests inside a sandbox: `python -I -S judge.py`. The model's program is in another one.

A test's names are its own, those of its setup, builtins, and modules of the standard library where an attribute of them
is taken. Every other name, `candidate` and the entry point are the program's: each use of it is asked of the server,
which asks the solution's sandbox, and the answer is data, a builtin exception, or a handle. A handle can be called,
iterated, indexed, measured, and has attributes, truth and text. It is equal to itself only: the other side would have
to answer a comparison, and could answer what it likes.

The server sends (setup, test, entry point); this process sends any number of ("ask", operation, arguments …), each
answered by (kind, bytes of a value, bytes of the changed arguments), and at last ("verdict", cause, text).
"""

import ast
import builtins
import importlib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
values = __import__("values")  # one of the two files that a sandbox has of this project
del sys.path[0], sys.modules["values"]

MAX_TEXT = 500  # characters of an exception's text
OF_BUILTINS = {
    name for kind in (str, bytes, bytearray, list, tuple, dict, set, int, float, complex, range) for name in dir(kind)
}
MAX_REQUESTS = 10_000  # of one test, so that an endless generator ends


class Unsupported(BaseException):
    """The test needs something of the program that is no data. A test's `except Exception` does not see it."""


class Program:
    """The other side: how often it was asked, and whether one of its objects was compared."""

    def __init__(self):
        self.requests, self.compared = 0, False

    def ask(self, operation: str, *arguments: object):
        self.requests += 1
        if self.requests > MAX_REQUESTS:
            raise Unsupported(f"more than {MAX_REQUESTS} requests in a test")
        try:
            write(("ask", operation, *arguments), opaque)
        except (values.Unsupported, values.TooLarge) as error:
            raise Unsupported(f"an argument cannot be sent: {error}") from None
        kind, value, changed = receive()
        try:
            value, changed = values.decode(value, self.handle), values.decode(changed, self.handle)
        except (ValueError, values.Unsupported) as error:
            raise Unsupported(f"the answer cannot be read: {error}") from None
        if kind == "raised":
            raise exception(value, operation == "next")
        if kind != "value":
            raise Unsupported(str(value))
        if changed is not None:
            update(list(arguments[1:]), changed)
        return value

    def handle(self, number: int):
        return Handle(self, number, "")

    def named(self, name: str):
        """What the program means by a name of the test; a class, if the test writes it with a capital."""
        value = self.ask("name", name)
        if type(value) is Handle and name[:1].isupper():
            return Handle(self, value._number, "class")
        return value


class Handle:
    """An object of the program.

    A test that calls a method which builtin values have expects one of those: `f(x).startswith("a")`. An object with
    a method of that name would be told the expected value and asked whether it is right. So only what a class makes
    which the test calls by its name has such methods: `Stack().pop()`.
    """

    __slots__ = ("_number", "_program", "_role")

    def __init__(self, program: Program, number: int, role: str):
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_role", role)

    def __call__(self, *arguments: object, **keywords: object):
        made = self._program.ask("call", self, arguments, keywords)
        if self._role == "class" and type(made) is Handle:
            return Handle(self._program, made._number, "instance")
        return made

    def __getattr__(self, name):
        value = self._program.ask("attribute", self, name)
        if type(value) is Handle and name in OF_BUILTINS and self._role != "instance":
            raise Unsupported(f"the test takes {name} of an object that is no data")
        return value

    def __setattr__(self, name, value):
        self._program.ask("assign", self, name, value)

    def __getitem__(self, key):
        return self._program.ask("item", self, key)

    def __iter__(self):
        return self._program.ask("iterate", self)

    def __next__(self):
        return self._program.ask("next", self)

    def __len__(self):
        return self._program.ask("length", self)

    def __bool__(self):
        return self._program.ask("truth", self) is True

    def __str__(self):
        return str(self._program.ask("text", self))

    def __repr__(self):
        return str(self._program.ask("description", self))

    def __eq__(self, other):
        same = type(other) is Handle and self._number == other._number
        self._program.compared |= not same
        return same

    def __hash__(self):
        return self._number


def opaque(value: object):
    """What stands for an object of the test in what is sent: only the program's own objects can be."""
    if type(value) is not Handle:
        raise values.Unsupported(f"a value of type {type(value).__name__}")
    return values.Handle(value._number)


def exception(description: tuple, of_next: bool):
    """The exception that the program raised, of the nearest builtin class that a text alone makes."""
    names, text, own = description
    if not of_next and {"StopIteration", "StopAsyncIteration"} & set(names):
        return RuntimeError(
            f"a call raised {own}"
        )  # it would end a loop of the test, such as all(map(f, …)), as if done
    for name in names:
        kind = getattr(builtins, str(name), None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            try:
                return kind(text)
            except TypeError:
                continue
    return Exception(f"{own}: {text}")


def update(old: object, new: object):
    """Make `old` equal to `new` in place, as far as its containers can be changed; what stands for it afterwards."""
    if type(old) is not type(new):
        return new
    if type(old) in (list, tuple):
        items = [update(a, b) for a, b in zip(old, new, strict=False)] + list(new[len(old) :])
        if type(old) is tuple:
            unchanged = len(items) == len(old) and all(a is b for a, b in zip(items, old, strict=True))
            return old if unchanged else tuple(items)
        old[:] = items
    elif type(old) is dict:
        items = {key: update(old[key], item) if key in old else item for key, item in new.items()}
        old.clear()
        old.update(items)
    elif type(old) is set:
        old.clear()
        old.update(new)
    elif type(old) is bytearray:
        old[:] = new
    else:
        return old if old == new else new
    return old


class Names(dict):
    """What a test's names mean that it does not define: builtins, modules, and last the program's."""

    def __init__(self, program: Program, owners: set[str]):
        super().__init__(vars(builtins))
        self.program, self.owners = program, owners

    def __missing__(self, name):
        if name in self.owners:  # never the program's `math` or `np`, which could hold another isclose
            if name not in sys.stdlib_module_names:
                raise Unsupported(f"the test takes an attribute of {name}, which its setup does not import")
            self[name] = importlib.import_module(name)
        elif name.startswith("__") and name.endswith("__"):
            raise KeyError(name)
        else:
            self[name] = self.program.named(name)
        return self[name]


def owners(*trees: ast.AST):
    """Names of which a test takes an attribute."""
    taken = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.id for node in taken if isinstance(node, ast.Name)}


def calls_check(tree: ast.Module):
    """Whether a test defines `check` and leaves its call to whoever runs it, as HumanEval's do."""
    defined = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body)
    called = any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check"
        for statement in tree.body
        if not isinstance(statement, ast.FunctionDef)
        for node in ast.walk(statement)
    )
    return defined and not called


def run(program: Program, setup: str, test: str, entry_point: str | None):
    """Run one test in a namespace of its own; an exception is its failure."""
    trees = ast.parse(setup), ast.parse(test)
    space = {"__name__": "tests"}
    space["__builtins__"] = Names(program, owners(*trees) - {entry_point})
    exec(compile(trees[0], "<setup>", "exec"), space)
    if entry_point is not None:  # the setup may hold it without a body
        space[entry_point] = space["candidate"] = program.named(entry_point)
    exec(compile(trees[1], "<test>", "exec"), space)
    if calls_check(trees[1]):
        space["check"](space["candidate"])


def verdict(setup: str, test: str, entry_point: str | None):
    """The cause that one test ends with, and a text."""
    program = Program()
    try:
        run(program, setup, test, entry_point)
    except Unsupported as error:
        return "unsupported", str(error)
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"[:MAX_TEXT]
        if program.compared:  # the program's object might have been equal, had it been data
            return "unsupported", text
        return "failed" if isinstance(error, AssertionError) else "error", text
    return "passed", ""


def read(size: int):
    parts = []
    while size:
        part = os.read(3, min(size, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def receive():
    return values.decode(read(int.from_bytes(read(4), "big")))


def write(value: object, handle: object = None):
    frame = values.encode(value, handle)
    frame = len(frame).to_bytes(4, "big") + frame
    while frame:
        frame = frame[os.write(4, frame) :]


def main():
    write("ready")
    while True:
        write(("verdict", *verdict(*receive())))


if __name__ == "__main__":
    main()
