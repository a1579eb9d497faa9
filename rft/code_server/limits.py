"""What a request may ask for. A program is the model's and gets a verdict whatever it is; the rest is checked here."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from rft.code_server import SECONDS

BODY_BYTES = 8 << 20
TEXT_CHARACTERS = 1 << 20  # one test, or the setup
TESTS = 1000
TEST_SECONDS = 60.0
REQUEST_SECONDS = 1800.0  # CPU time of all tests together
QUEUE = 1024  # requests that wait
CONNECTIONS = 2 * QUEUE
STOP_SECONDS = 5  # for what runs when the server is told to stop; then it is cancelled
CLOSE_SECONDS = 5  # for answers and connections after that


def _plain(text: str) -> str:
    """Text of the data set: what Python's compiler could not read is a mistake there, not of the model."""
    if "\0" in text:
        raise ValueError("contains NUL")
    return text


def _name(text: str) -> str:
    if not text.isidentifier():
        raise ValueError("is no name of Python")
    return text


def _text(value: Any) -> str:
    """Any text, lone surrogates too, which pydantic's own str refuses."""
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


Plain = Annotated[str, Field(strict=True, max_length=TEXT_CHARACTERS), AfterValidator(_plain)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=TEST_SECONDS, allow_inf_nan=False)]


class Strict(BaseModel):
    """A request without fields that the server would not read."""

    model_config = ConfigDict(extra="forbid")


class Tests(Strict):
    """What both kinds of tests have."""

    program: Annotated[Any, AfterValidator(_text)]
    tests: Annotated[list, Field(strict=True, min_length=1, max_length=TESTS)]
    max_execution_time: Seconds = SECONDS  # seconds of CPU time a test

    def model_post_init(self, _: Any) -> None:
        """Raises ValueError if the tests together may take longer than a request."""
        if len(self.tests) * self.max_execution_time > REQUEST_SECONDS:
            raise ValueError(f"tests times max_execution_time must be {REQUEST_SECONDS:g} s at most")


class ProgramTests(Tests):
    """`POST /test_program`."""

    tests: Annotated[list[Plain], Field(strict=True, min_length=1, max_length=TESTS)]
    setup: Plain = ""
    entry_point: Annotated[str, Field(strict=True, max_length=200), AfterValidator(_name)] | None = None


class StdioTest(Strict):
    """What a program reads and what it must print."""

    input: Annotated[str, Field(strict=True)]
    output: Annotated[str, Field(strict=True)]


class StdioTests(Tests):
    """`POST /test_program_stdio`."""

    tests: Annotated[list[StdioTest], Field(strict=True, min_length=1, max_length=TESTS)]


class Execution(Strict):
    """`POST /execute`."""

    code: Annotated[Any, AfterValidator(_text)]
    timeout: Seconds = SECONDS
