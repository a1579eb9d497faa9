"""The chat template against openai-harmony's rendering, without transformers (seconds to import)."""

import gzip
import json
import os
import tempfile
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rft.overlay.installer import pip_install
from rft.runs.preflight.lines import GO, NO_GO, WARN, Line

if TYPE_CHECKING:
    from openai_harmony import HarmonyEncoding
    from tokenizers import Tokenizer

MERGES = "o200k_base.tiktoken"  # the vocabulary's file, as openai-harmony looks for it
START = 200006  # <|start|> in o200k_harmony: a tokenizer with it has gpt-oss's own vocabulary


def check_harmony(model: Path, tokenizer: "Tokenizer", chat: list[dict] | None) -> list[Line]:
    """A prompt of the training file rendered by the model's template, compared with openai-harmony's, token by token.

    A tokenizer with another vocabulary (the tiny model's) is compared as text. `chat` is None where the run applies no
    template. White space alone is a warning: gpt-oss's own template has two line ends more after instructions.
    """
    if chat is None:
        return [Line("Harmony template", WARN, "prompts go in as plain text", "--apply_chat_template")]
    if not find_spec("openai_harmony"):
        return [Line("Harmony template", WARN, "not compared: no openai-harmony", f"{pip_install()} openai-harmony")]
    if not vocabulary_present():
        measured = "not compared: the o200k vocabulary is not on this machine"
        repair = f"{pip_install()} bpe-openai, or set TIKTOKEN_ENCODINGS_BASE"
        return [Line("Harmony template", WARN, measured, repair)]
    import jinja2

    repair = "use the tokenizer and chat_template.jinja that came with the checkpoint"
    try:
        text = render(model, chat)
    except (ValueError, jinja2.TemplateError) as error:
        return [Line("Harmony template", NO_GO, f"does not render: {error}", repair)]
    encoding = load_encoding()
    wanted = reference_tokens(encoding, chat, text)
    if tokenizer.token_to_id("<|start|>") == START:
        found, kind = tokenizer.encode(text, add_special_tokens=False).ids, "token ids"
    else:
        found, wanted, kind = text, encoding.decode(wanted), "characters"
    if found == wanted:
        return [Line("Harmony template", GO, f"{len(found)} {kind} equal openai-harmony's")]
    shorter = min(len(found), len(wanted))
    place = next((i for i in range(shorter) if found[i] != wanted[i]), shorter)
    measured = f"differs from {kind[:-1]} {place} on: {found[place:][:30]!r}, wanted {wanted[place:][:30]!r}"
    reference = wanted if isinstance(wanted, str) else encoding.decode(wanted)
    alike = text != reference and "".join(text.split()) == "".join(reference.split())
    return [Line("Harmony template", WARN if alike else NO_GO, measured, repair)]


def vocabulary_present() -> bool:
    return vocabulary_given() or find_spec("bpe_openai") is not None


def vocabulary_given() -> bool:
    """Whether TIKTOKEN_ENCODINGS_BASE names a folder with the vocabulary; without one the library asks the network."""
    return Path(os.environ.get("TIKTOKEN_ENCODINGS_BASE") or ".", MERGES).is_file()


def unpack_vocabulary(folder: str) -> Path:
    """Write o200k's merges, which bpe-openai carries packed, as `folder`/o200k_base.tiktoken.

    Raises:
        ModuleNotFoundError: no bpe-openai.
    """
    found = find_spec("bpe_openai")
    if found is None:
        raise ModuleNotFoundError(f"no bpe-openai, which holds the vocabulary; {pip_install()} bpe-openai")
    packed, file = Path(found.submodule_search_locations[0], "data", f"{MERGES}.gz"), Path(folder, MERGES)
    file.write_bytes(gzip.decompress(packed.read_bytes()))
    return file


def load_encoding():
    """openai-harmony's encoding, offline: bpe-openai carries its vocabulary, packed."""
    import openai_harmony

    name = openai_harmony.HarmonyEncodingName.HARMONY_GPT_OSS
    if vocabulary_given():
        return openai_harmony.load_harmony_encoding(name)
    with tempfile.TemporaryDirectory() as folder:
        unpack_vocabulary(folder)
        before = os.environ.get("TIKTOKEN_ENCODINGS_BASE")
        os.environ["TIKTOKEN_ENCODINGS_BASE"] = folder
        try:
            return openai_harmony.load_harmony_encoding(name)
        finally:
            del os.environ["TIKTOKEN_ENCODINGS_BASE"]
            os.environ |= {} if before is None else {"TIKTOKEN_ENCODINGS_BASE": before}


def reference_tokens(encoding: "HarmonyEncoding", chat: list[dict], text: str) -> list[int]:
    """openai-harmony's tokens of a prompt, with the date and the effort that the template's `text` shows."""
    import openai_harmony as harmony

    dated = "Current date: " in text
    system = harmony.SystemContent(
        knowledge_cutoff="2024-06" if "Knowledge cutoff: " in text else None,
        conversation_start_date=f"{datetime.now():%Y-%m-%d}" if dated else None,
        reasoning_effort=next((e for e in harmony.ReasoningEffort if f"Reasoning: {e.value.lower()}" in text), None),
    )
    messages = [harmony.Message.from_role_and_content(harmony.Role.SYSTEM, system)]
    for turn in chat:
        if turn["role"] in ("system", "developer"):
            content = harmony.DeveloperContent(instructions=turn["content"])
            messages.append(harmony.Message.from_role_and_content(harmony.Role.DEVELOPER, content))
        else:
            role = harmony.Role(turn["role"])
            message = harmony.Message.from_role_and_content(role, turn["content"])
            messages.append(message.with_channel("final") if role == harmony.Role.ASSISTANT else message)
    conversation = harmony.Conversation.from_messages(messages)
    return encoding.render_conversation_for_completion(conversation, harmony.Role.ASSISTANT)


def render(model: Path, chat: list[dict]) -> str:
    """The prompt as transformers' `apply_chat_template(chat, add_generation_prompt=True)` writes it.

    Raises:
        ValueError: the model has no chat template.
    """
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    return environment.from_string(template_text(model)).render(messages=chat, add_generation_prompt=True)


def template_text(model: Path) -> str:
    file, config = model / "chat_template.jinja", model / "tokenizer_config.json"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    text = json.loads(config.read_text()).get("chat_template") if config.is_file() else None
    if not isinstance(text, str):
        raise ValueError(f"{model} has no chat_template.jinja")
    return text


def refuse(message: str):
    raise ValueError(message)


def load_tokenizer(model: Path):
    """The model's fast tokenizer. Raises ValueError where its file cannot be read."""
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    except Exception as error:  # the library raises nothing more special
        raise ValueError(f"tokenizer.json: {error}") from None


def longest_prompt(model: Path, tokenizer: "Tokenizer", prompts: list[str | list[dict]], templated: bool) -> int:
    """Tokens of the longest of these prompts, as the engine gets them."""
    texts = [render(model, as_chat(prompt)) if templated else prompt for prompt in prompts]
    return max(len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts)


def as_chat(prompt: str | list[dict]) -> list[dict]:
    """A prompt as chat messages; OpenRLHF makes text one user message."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
