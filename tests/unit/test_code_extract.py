"""The program that a response states."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.code.extract import METHODS, Opened, extract, open_program

F = "def f(x):\n    return x + 1"
G = "def g(x):\n    return x"
BLOCK = f"```python\n{F}\n```"
DONE = Opened("", "[DONE]")
FENCE = Opened("", "fence")
STUB = 'from typing import List\n\n\ndef f(x: int) -> int:\n    """Add one."""\n'
TEXT = '"""\na\n"""'
FUNCTION = Opened(STUB, "function")

# name: response, what the prompt left open, program, method
CASES = {
    "a block": (f"Here it is:\n\n{BLOCK}\nIt adds one.", None, F, "block"),
    "py": (BLOCK.replace("python", "py"), None, F, "block"),
    "a capital": (BLOCK.replace("python", "Python"), None, F, "block"),
    "attributes": (BLOCK.replace("python", "{.python}"), None, F, "block"),
    "a title behind the tag": (BLOCK.replace("python", "python title=a.py"), None, F, "block"),
    "no tag": (BLOCK.replace("python", ""), None, F, "block"),
    "tildes": (BLOCK.replace("```", "~~~"), None, F, "block"),
    "four ticks hold three": (f"````python\n{F}\n```\n````", None, f"{F}\n```", "block"),
    "in a list": (f"1. So:\n   ```python\n   {F.replace(chr(10), chr(10) + '   ')}\n   ```", None, F, "block"),
    "Windows line ends": (BLOCK.replace("\n", "\r\n"), None, F, "block"),
    "a special token behind the fence": (f"{BLOCK}<|im_end|>", None, F, "block"),
    "special tokens behind": (f"{BLOCK}\n</s> <|endoftext|>\n", None, F, "block"),
    "another language after it": (f"{BLOCK}\n```bash\npython f.py\n```", None, F, "block"),
    "output after it": (f"{BLOCK}\nOutput:\n```text\n2\n```", None, F, "block"),
    "a use after it": (f"{BLOCK}\nUse:\n```python\nprint(f(1))\n```", None, F, "block"),
    "two attempts": (f"```python\n{F}0\n```\nNo:\n{BLOCK}", None, F, "block"),
    "two attempts, the last without a tag": (f"```python\n{F}0\n```\nNo:\n```\n{F}\n```", None, F, "block"),
    "none defines it": (f"```python\n{G}0\n```\n```python\n{G}\n```", None, G, "block"),
    "a name that only begins so": (f"{BLOCK}\n```python\ndef f_test(): pass\n```", None, F, "block"),
    "a comparison is no definition": (f"{BLOCK}\n```python\nf == 3\n```", None, F, "block"),
    "a lambda": (f"```python\nf = lambda x: x\n```\n```python\n{G}\n```", None, "f = lambda x: x", "block"),
    "a class": ("```python\nclass f: pass\n```\n```python\nf(1)\n```", None, "class f: pass", "block"),
    "an async function": ("```\nasync def f(): pass\n```\n```\nf(1)\n```", None, "async def f(): pass", "block"),
    "an empty block after it": (f"{BLOCK}\n```python\n\n```", None, F, "block"),
    "not closed": (f"```python\n{F}", None, F, "unclosed"),
    "an attempt that is cut counts": (f"{BLOCK}\nBetter:\n```python\n{F}0", None, f"{F}0", "unclosed"),
    "not closed but by [DONE]": (f"```python\n{F}\n[DONE]", None, F, "unclosed"),
    "markers": (f"[BEGIN]\n{F}\n[DONE]", None, F, "markers"),
    "markers on the program's lines": (f"[BEGIN] {G}\n[DONE]", None, f" {G}", "markers"),
    "markers on one line": ("[BEGIN]f = abs[DONE]", None, "f = abs", "markers"),
    "a block in markers": (f"[BEGIN]\n{BLOCK}\n[DONE]", None, F, "block"),
    "a block in markers with one line": (f"[BEGIN]\n```python\n{F}\n```[DONE]", None, F, "block"),
    "markers twice": (f"[BEGIN]\n{F}\n[DONE]\n\n[BEGIN]\n{G}\n[DONE]", None, F, "markers"),
    "markers not closed": (f"[BEGIN]\n{F}", None, F, "unclosed"),
    "a block and then markers": (f"{BLOCK}\n[BEGIN]\n{F}0\n[DONE]", None, f"{F}0", "markers"),
    "a fence that nothing opened": (f"{F}\n```\nIt adds one.", None, F, "continued"),
    "[DONE] without [BEGIN]": (f"{F}\n[DONE]\n\nYou are an expert", None, F, "continued"),
    "a text that is the program": (f"import math\n\n{F}\n", None, f"import math\n\n{F}", "text"),
    "a program and words": (f"{F}\n\nThis adds one.", None, f"{F}\n\nThis adds one.", "text"),
    "words": ("I cannot do that: f is not known.", None, None, "none"),
    "nothing": ("", None, None, "none"),
    "blanks": (" \n ", None, None, "none"),
    "an empty block": ("```python\n```", None, None, "none"),
    "another function as text": (G, None, None, "none"),
    "an open section": (f"{F}\n[DONE]\nYou are an expert\n[BEGIN]\n{G}\n[DONE]", DONE, F, "continued"),
    "an open section, [DONE] on the last line": (f"{F}[DONE]", DONE, F, "continued"),
    "an open section and a block": (f"{BLOCK}\n[DONE]", DONE, F, "block"),
    "an open block": (f"{F}\n```\nWords.\n```python\n{G}\n```", FENCE, F, "continued"),
    "an open block with two functions": (f"{F}\n\n\n{G}\n```", FENCE, f"{F}\n\n\n{G}\n", "continued"),
    "an open block, opened again": (BLOCK, FENCE, F, "block"),
    "a body": ("    return x + 1\n", FUNCTION, f"{STUB}    return x + 1\n", "continued"),
    "a body and more": (f"    return x\n\n\n{G}\n", FUNCTION, f"{STUB}    return x\n\n", "continued"),
    "a body and a comment": ("    return x\n# next", FUNCTION, f"{STUB}    return x", "continued"),
    "a body and a call": ("    return x\nprint(f(1))", FUNCTION, f"{STUB}    return x", "continued"),
    "a body and a fence": ("    return x\n```\nwords", FUNCTION, f"{STUB}    return x", "continued"),
    "a text at the margin": (f"    return {TEXT}", FUNCTION, f"{STUB}    return {TEXT}", "continued"),
    "a body that is a whole answer": (BLOCK, FUNCTION, F, "block"),
    "no body": ("\n\n", FUNCTION, None, "none"),
}  # fmt: skip


@pytest.mark.parametrize(("response", "opened", "program", "method"), CASES.values(), ids=CASES)
def test_programs(response, opened, program, method):
    found, how = extract(response, "f", opened)
    assert (found and found.rstrip("\n"), how) == (program and program.rstrip("\n"), method)


NO_NAME = {
    "the last block": (f"```python\n{F}\n```\n```python\n{G}\n```", G, "block"),
    "a script": ("n = int(input())\nprint(n)", "n = int(input())\nprint(n)", "text"),
    "a script behind a comment": ("# adds\nprint(1)", "# adds\nprint(1)", "text"),
    "words": ("The answer is 4.", None, "none"),
    "words before a fence": ("Here is the program\n```\nprint(1)\n```", "print(1)", "block"),
}


@pytest.mark.parametrize(("response", "program", "method"), NO_NAME.values(), ids=NO_NAME)
def test_programs_without_an_entry_point(response, program, method):
    assert extract(response) == (program, method)


PROMPTS = {
    "chat": (f"<|start|>user<|message|>Write f.\n```python\n{STUB}```<|end|><|start|>assistant", None),
    "ChatML": ("<|im_start|>user\nWrite:\n```python\n<|im_end|>\n<|im_start|>assistant\n", None),
    "chat, a fence that stays open": ("<|start|>user<|message|>Write:\n```python\n<|end|><|start|>assistant", None),
    "words": ("Write a function f that adds one.", None),
    "words about a block": ("Write it.\n```python\nassert f(1) == 2\n```", None),
    "HumanEval": (STUB, FUNCTION),
    "a program without the function": ("import math\n", None),
    "an open block": (f"Complete it.\n```python\n{STUB}", Opened(STUB, "fence")),
    "a chat with an open block": ("<|start|>user<|message|>f?<|end|><|start|>assistant<|message|>```python\n", FENCE),
    "an open block of another language": ("Complete it.\n```bash\n", None),
    "few-shot MBPP": (f"Task one\n[BEGIN]\n{G}\n[DONE]\n\nTask two\n[BEGIN]\n", DONE),
    "few-shot MBPP with closed sections": (f"Task one\n[BEGIN]\n{G}\n[DONE]\n", None),
}


@pytest.mark.parametrize(("prompt", "opened"), PROMPTS.values(), ids=PROMPTS)
def test_what_a_prompt_leaves_open(prompt, opened):
    assert open_program(prompt, "f") == opened


PIECES = (
    "```",
    "```python",
    "~~~",
    "[BEGIN]",
    "[DONE]",
    "\n",
    "\r\n",
    "    ",
    F,
    G,
    "def f",
    "<|end|>",
    "x = 1",
    "# f",
    "\0",
    "\ud800",
)


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=20).map("".join), st.sampled_from([None, "f"]))
def test_any_text_has_a_program_of_its_own_lines_or_none(text, entry_point):
    program, method = extract(text, entry_point)
    assert method in METHODS and (program is None) == (method == "none")
    if program is not None:
        assert program.strip()
        here = text.replace("\r\n", "\n")
        assert all(line in here for line in program.split("\n"))


@given(st.text(alphabet=st.characters(exclude_characters="`~[\r")).filter(str.strip))
def test_what_stands_in_a_block_is_kept_as_it_is(code):
    program = f"def f():\n    pass\n{code}"
    assert extract(f"Words.\n```python\n{program}\n```\nMore words.", "f") == (program.strip("\n"), "block")


@pytest.mark.parametrize(
    "piece",
    ["```\n", "```python\n", "`" * 3, "[BEGIN]", "[BEGIN]\n", "[DONE]\n", " ", "\n", "<|end|>", "(", "def f", "f ="],
)
def test_long_texts_take_time_in_proportion(piece):
    """A hostile text of this length takes hours where a pattern backtracks; here it takes a fraction of a second."""
    started = time.monotonic()
    for entry_point in (None, "f"):
        extract(piece * (10**6 // len(piece)), entry_point)
        open_program(piece * (10**6 // len(piece)), entry_point)
    print(f"{time.monotonic() - started:.2f} s")
