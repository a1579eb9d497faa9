"""`--reasoning_effort`: refused before Ray starts where no prompt would show it."""

import json

import pytest

from rft.options import command

WRITES_IT = "{{ 'Reasoning: ' + reasoning_effort }}"


def options(folder, words: str):
    return command.parse(["-m", command.MODULE, "--pretrain", str(folder), *words.split()])


@pytest.mark.parametrize(
    ("files", "words", "found"),
    [
        ({"chat_template.jinja": WRITES_IT}, "--reasoning_effort low", "low without --apply_chat_template"),
        ({"chat_template.jinja": "{{ messages }}"}, "--reasoning_effort low --apply_chat_template", "a chat template"),
        ({}, "--reasoning_effort low --apply_chat_template", "a chat template"),
        ({"tokenizer_config.json": "[]"}, "--reasoning_effort high --apply_chat_template", "a chat template"),
        ({}, "--reasoning_effort most", "invalid choice: 'most'"),
    ],
)
def test_an_effort_that_no_prompt_would_show_is_refused(tmp_path, files, words, found):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=found):
        options(tmp_path, words)


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.jinja": WRITES_IT},
        {"tokenizer_config.json": json.dumps({"chat_template": WRITES_IT})},
        {"tokenizer_config.json": json.dumps({"chat_template": [{"name": "default", "template": WRITES_IT}]})},
    ],
)
def test_an_effort_that_the_template_writes_is_taken(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert options(tmp_path, "--reasoning_effort medium --apply_chat_template").reasoning_effort == "medium"
    assert options(tmp_path, "--apply_chat_template").reasoning_effort is None
    assert options("a-name/of-the-hub", "--reasoning_effort low --apply_chat_template").reasoning_effort == "low"
