"""Runs one program of the model inside a sandbox and answers requests for its functions: `python -I -S solution.py`.

The program shares this process and can do here what it likes. So nothing that leaves this process is believed to be
more than a value: no verdict is made here, no test and no expected value comes in, only the arguments of one call at a
time. Each request carries a number drawn by the server, which its answer repeats, so that a frame written before the
request came, or a second one behind the answer, answers nothing.

A request is (number, operation, arguments …), an answer
(number, kind, bytes of a value, bytes of the changed arguments):
    ready                                       sent once, when the interpreter has started
    compile(source, name of the module)         nothing | compile_error(text)
    start()                                     nothing: runs the compiled source | raised
    script(input)                               runs it with this standard input, then the process ends: nothing, or
                                                raised(text of the traceback) before it ends with status 1
    function(name, args, kwargs)                calls it, for a caller who does not look at its arguments again
    name(name) call(object, args, kwargs) attribute(object, name) assign(object, name, value) item(object, key)
    iterate(object) next(object) length(object) truth(object) text(object) description(object)
                                                value | unsupported(text)
                                                | raised(names of builtin exception classes, text, its own class)
Objects that are no data stay here, behind a handle. A generator is such an object: its items are asked for one by one.
"""

import builtins
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
values = __import__("values")  # one of the two files that a sandbox has of this project
del sys.path[0], sys.modules["values"]

MAX_TEXT = 500  # characters of an exception's text
MAX_TRACEBACK = 10_000
MAX_HANDLES = 100_000
MAX_PART = values.MAX_BYTES // 2 - 1000  # bytes of the value and of the changed arguments in one answer
NOTHING = values.encode(None)
# A builtin subclass that compares as its base does is sent as the base. Read by the base's own methods, which a class
# of the program cannot replace: what it makes of `==`, `len` or iteration counts for nothing.
BASES = {
    dict: lambda value: dict(dict.items(value)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
}


class Objects:
    """The program's objects that others hold handles of; alive as long as this process, so no id is reused."""

    def __init__(self):
        self.kept, self.numbers = [], {}

    def handle(self, value: object):
        if id(value) not in self.numbers:
            if len(self.kept) >= MAX_HANDLES:
                raise values.TooLarge("too many objects")
            self.numbers[id(value)] = len(self.kept)
            self.kept.append(value)
        return values.Handle(self.numbers[id(value)])

    def opaque(self, value: object):
        for kind in type(value).__mro__:
            if kind in BASES:
                return BASES[kind](value)
        return self.handle(value)

    def get(self, number: int):
        if number >= len(self.kept):
            raise values.Unsupported("no such object")
        return self.kept[number]


class Program:
    """The compiled source, its module and what was asked of it."""

    def __init__(self):
        self.code, self.module, self.objects = None, None, Objects()
        self.harness = sys.modules["__main__"]  # stays alive when the program takes that name

    def compile(self, source: str, name: str):
        try:
            self.code = compile(source, "<program>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            return "compile_error", values.encode(described(error)), NOTHING
        self.module = type(sys)(name)
        sys.modules[name] = self.module  # dataclasses and pickle look their module up
        return "nothing", NOTHING, NOTHING

    def start(self):
        exec(self.code, self.module.__dict__)
        return None

    def name(self, name: str):
        space = self.module.__dict__
        if name in space:
            return space[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise NameError(f"name {name!r} is not defined")

    def function(self, name: str, arguments: tuple, keywords: dict):
        return self.name(name)(*arguments, **keywords)


OPERATIONS = {
    "call": lambda function, arguments, keywords: function(*arguments, **keywords),
    "attribute": getattr,
    "assign": setattr,
    "item": lambda value, key: value[key],
    "iterate": iter,
    "next": next,
    "length": len,
    "truth": bool,
    "text": str,
    "description": repr,
}


def described(error: BaseException):
    """The text of an exception; making it may run code of the program."""
    try:
        return f"{type(error).__name__}: {error}"[:MAX_TEXT]
    except BaseException:
        return "an exception without text"


def raised(error: BaseException):
    """The builtin classes that an exception is of, its own first, and its text."""
    known = [kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind]
    try:
        text = str(error)[:MAX_TEXT]
    except BaseException:
        text = ""
    return "raised", values.encode((known, text, type(error).__name__[:MAX_TEXT])), NOTHING


def answer(program: Program, operation: str, arguments: list):
    """The answer to one request: its kind, and the encoded value and changed arguments."""
    objects = program.objects
    try:
        if operation == "compile":
            return program.compile(*arguments)
        sent = arguments[1:] if operation == "call" else None
        before = sent and values.encode(sent, objects.opaque, MAX_PART)
        if operation in ("start", "name", "function"):
            value = getattr(program, operation)(*arguments)
        else:
            value = OPERATIONS[operation](*arguments)
    except BaseException as error:  # SystemExit too: it ends the call, not the sandbox
        return raised(error)
    try:
        after = sent and values.encode(sent, objects.opaque, MAX_PART)
        return "value", values.encode(value, objects.opaque, MAX_PART), NOTHING if after == before else after
    except (values.Unsupported, values.TooLarge, RecursionError) as error:
        return "unsupported", values.encode(described(error)), NOTHING
    except BaseException as error:
        return raised(error)


def script(program: Program, number: int, text: bytes):
    """Run the program as a script with `text` as its standard input. Its output is read from outside, at its end."""
    with open(0, "wb", closefd=False) as file:  # every sandbox has an empty file without a name there
        file.write(text)
    os.lseek(0, 0, os.SEEK_SET)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        exec(program.code, program.module.__dict__)
    except Exception as error:
        import traceback

        lines = traceback.format_exception(type(error), error, error.__traceback__.tb_next)
        sys.stdout.flush()
        write(values.encode((number, "raised", values.encode("".join(lines)[-MAX_TRACEBACK:]), NOTHING)))
        sys.exit(1)


def read(size: int):
    parts = []
    while size:
        part = os.read(3, min(size, 1 << 20))
        if not part:
            raise SystemExit
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write(frame: bytes):
    frame = len(frame).to_bytes(4, "big") + frame
    while frame:
        frame = frame[os.write(4, frame) :]


def main():
    program = Program()
    sys.argv = ["program.py"]
    builtins.exit = builtins.quit = sys.exit  # the module site, which -S leaves out, defines them
    write(values.encode("ready"))
    while True:
        request = read(int.from_bytes(read(4), "big"))
        number, operation, *arguments = values.decode(request, program.objects.get)
        if operation == "script":
            return script(program, number, *arguments)
        write(values.encode((number, *answer(program, operation, arguments))))


if __name__ == "__main__":
    main()
