"""Labels that are tests of programs, the reward that reads them, and the code server that it asks."""

import asyncio
import os
from argparse import Namespace
from pathlib import Path

from rft.code.labels import is_code_label, parse
from rft.code_server.client import URL, URL_VARIABLE, CodeServerError
from rft.code_server.grade import CONSENT, is_refused
from rft.runs.code_server import SERVER
from rft.runs.preflight.labels import OTHER, kinds
from rft.runs.preflight.lines import GO, NO_GO, WARN, Line, lines
from rft.runs.service import health

REWARD = "reward_func_code.py"
START = "START_CODE_SERVER=1 at the launch, or CODE_SERVER_URL=http://127.0.0.1:PORT of a running one"


def check_programs(args: Namespace, also_evaluated: str = "") -> list[Line]:
    """Nothing for a run without programs; else whether its reward and its labels fit, and what the server answers."""
    trained, in_loop = (kinds(kind, names, args.label_key) for names in (args.prompt_data, args.eval_dataset))
    outside = kinds(kind, also_evaluated)
    by_code = Path(args.remote_rm_url or "").name == REWARD
    if not by_code and set(trained + in_loop + outside) <= {OTHER}:
        return []
    faults = []
    for option, found in (("--prompt_data", trained), ("--eval_dataset", in_loop)):
        wrong = found[OTHER] if by_code else found.total() - found[OTHER]
        if wrong and by_code:
            measured = f"{wrong} labels of {option} are no tests of programs, which {REWARD} grades"
            faults.append(
                Line("programs", NO_GO, measured, "rewards/reward_func_em.py, or data of data/prepare_code_data.py")
            )
        elif wrong and args.remote_rm_url and Path(args.remote_rm_url).name == "reward_func_em.py":
            measured = f"{wrong} labels of {option} are tests of programs, which reward_func_em.py cannot grade"
            faults.append(Line("programs", NO_GO, measured, f"--remote_rm_url rewards/{REWARD}"))
    counts = ", ".join(f"{name} {count}" for name, count in sorted((trained + in_loop + outside).items()))
    return [*lines("programs", faults, f"labels: {counts}"), check_server()]


def kind(label: object) -> str:
    """What a label is. Raises ValueError for tests that cannot be read."""
    return parse(label).kind if isinstance(label, str) and is_code_label(label) else OTHER


def check_server() -> Line:
    """The server's answer, and how it isolates programs."""
    url = os.environ.get(URL_VARIABLE) or URL
    try:
        found = asyncio.run(health(SERVER, url))
    except (CodeServerError, ValueError) as error:
        return Line("code server", NO_GO, str(error), START)
    measured = f"{url}, isolation {found['isolation']}"
    if found["isolation"] == "none":
        return Line(
            "code server",
            NO_GO if is_refused(found["isolation"]) else WARN,
            f"{measured}: programs of the model can do all that this user can",
            f"namespaces or Landlock (docs/code_rewards.md), or accept it: export {CONSENT}=1",
        )
    return Line("code server", GO, measured)
