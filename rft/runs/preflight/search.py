"""The search agent: its settings, its labels, room for its turns, the retriever that it asks and where that is."""

import asyncio
import os
from argparse import Namespace
from pathlib import Path
from urllib.parse import urlsplit

from rft.agents.settings import Settings
from rft.grading.short_answer import answers_of, is_search_label
from rft.record.digest import file_sha256
from rft.retriever import RetrieverError
from rft.runs import retriever
from rft.runs.manifest import SEARCH_AGENT
from rft.runs.preflight.labels import OTHER, kinds
from rft.runs.preflight.lines import GO, NO_GO, WARN, Line, lines
from rft.runs.preflight.software import OWN_CLUSTER
from rft.runs.service import health

AGENT = f"--agent_func_path agents/{SEARCH_AGENT}"
START = "START_RETRIEVER=1 with CORPUS=FILE.jsonl at the launch, or RETRIEVER_URL=http://HOST:PORT of a running one"
SEARCH, BROKEN = "search", "broken"  # kinds of labels, beside OTHER


def is_agent(args: Namespace) -> bool:
    """Whether the samples of a training are the search agent's conversations."""
    return Path(args.agent_func_path or "").name == SEARCH_AGENT


def check_search(args: Namespace, also_evaluated: str = "") -> list[Line]:
    """Nothing for a run without searches; else its settings, its labels and the retriever."""
    found = kinds(kind, args.prompt_data, args.label_key) + kinds(kind, args.eval_dataset, args.label_key)
    found += kinds(kind, also_evaluated)
    if not is_agent(args):
        wrong = found[SEARCH] + found[BROKEN]
        if not wrong:
            return []
        return [Line("search labels", NO_GO, f"{wrong} labels of search tasks, and no agent that searches", AGENT)]
    faults = []
    repair = "data/prepare_search_data.py makes such files (docs/data.md)"
    if wrong := found[OTHER] + found[BROKEN]:
        measured = f"{wrong} of {found.total()} labels are none of a search task, which {SEARCH_AGENT} grades"
        faults.append(Line("search labels", NO_GO, measured, repair))
    result = lines("search labels", faults, f"{found[SEARCH]} labels with accepted answers") if found.total() else []
    try:
        settings = Settings.from_environment()
    except ValueError as error:
        return [*result, Line("search agent", NO_GO, str(error), "export the variable with such a value, or unset it")]
    limits = ", ".join(f"{name} {value}" for name, value in settings.identity().items())
    return [*result, Line("search agent", GO, limits), *check_retriever(settings)]


def kind(label: object) -> str:
    """What a label is."""
    if not is_search_label(label):
        return OTHER
    try:
        answers_of(label)
    except ValueError:
        return BROKEN
    return SEARCH


def check_room(args: Namespace, longest: int | None) -> list[Line]:
    """Turns and observations behind the longest prompt, within the tokens of a sample: `rft.agents.conversation`.

    Args:
        longest: tokens of the longest training prompt, None where it was not measured.
    """
    try:
        settings = Settings.from_environment()
    except ValueError:
        return []  # said by check_search
    total, prompt = args.prompt_max_len + args.generate_max_len, min(longest or 0, args.prompt_max_len)
    turn = min(settings.turn_tokens, args.generate_max_len)
    step = turn + settings.observation_tokens
    wanted = prompt + settings.max_turns * step - settings.observation_tokens
    searches = min(settings.max_turns - 1, max(0, (total - prompt - turn) // step))
    measured = f"{prompt} tokens of prompt, {settings.max_turns} turns of {turn}, observations of "
    measured += f"{settings.observation_tokens}: {wanted} of {total}"
    repair = f"--generate_max_len {max(1, wanted - args.prompt_max_len)}, or lower RFT_AGENT_TURN_TOKENS"
    if settings.max_turns > 1 and searches == 0:
        return [Line("turns", NO_GO, f"{measured}: no turn could search", repair)]
    if wanted > total:
        measured += f": at full length {searches} of {settings.max_turns - 1} searches"
        return [Line("turns", WARN, measured, repair)]
    return [Line("turns", GO, measured)]


def check_retriever(settings: Settings) -> list[Line]:
    """The retriever's answer; its corpus, where the environment names one too; its address, seen from other nodes."""
    url = settings.retriever_url
    try:
        found = asyncio.run(health(retriever.SERVER, url))
    except (RetrieverError, ValueError) as error:
        return [Line("retriever", NO_GO, str(error), START)]
    measured = f"{url}, {retriever.describe(found)}"
    if doing := retriever.progress(found):
        repair = f".venv/bin/python -m rft.runs.retriever {url} waits for it"
        return [Line("retriever", NO_GO, f"{url} is not ready: {doing}", repair)]
    faults = []
    corpus = Path(os.environ.get("CORPUS") or "")
    if corpus.is_file() and (digest := file_sha256(corpus)) != found["corpus"]:
        faults.append(
            Line(
                "retriever",
                NO_GO,
                f"{measured}; but CORPUS={corpus} has sha256 {digest[:16]}",
                "unset CORPUS, or start the retriever again with this corpus",
            )
        )
    if found["passages"] < settings.topk:
        less = f"{measured}: fewer than RFT_AGENT_TOPK={settings.topk}"
        faults.append(Line("retriever", WARN, less, "a larger corpus, or a smaller RFT_AGENT_TOPK"))
    if os.environ.get("RAY_ADDRESS") and OWN_CLUSTER not in os.environ and is_loopback(url):
        far = f"{url}: engines on other nodes of RAY_ADDRESS would ask their own loopback"
        faults.append(Line("retriever", WARN, far, "RETRIEVER_URL with this node's address, which other nodes reach"))
    place = check_place(found["index"]) if os.environ.get("RETRIEVER_PID") else []  # of this launch
    return lines("retriever", faults, measured) + place


def is_loopback(url: str) -> bool:
    """Whether an address means each machine itself."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def check_place(index: str) -> list[Line]:
    """The GPUs of the retriever that this launch has started, and those of the training."""
    own, training = os.environ.get("RETRIEVER_GPUS"), os.environ.get("CUDA_VISIBLE_DEVICES")
    repair = "RETRIEVER_GPUS=N,… of its own, or RETRIEVER_URL of another node"
    if os.environ.get("RFT_STACK", "").startswith("cpu"):
        return []
    if own == "all":
        measured = "its GPUs are the training's too, whose memory it takes"
        return [Line("retriever's GPUs", WARN, measured, repair)]
    if own:
        shared = set(own.split(",")) & set((training or "").split(","))
        if shared or training is None:
            return [Line("retriever's GPUs", NO_GO, f"{own}, of which the training sees {training or 'all'}", repair)]
        return [Line("retriever's GPUs", GO, f"{own}; the training's: {training}")]
    if index.endswith("torch"):
        return [Line("retriever's GPUs", NO_GO, f"none for {index}: it searches on the CPU", repair)]
    return [Line("retriever's GPUs", GO, "none")]
