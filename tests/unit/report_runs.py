"""What the tests of the report share: made-up runs, hostile texts, and the page read as a browser would."""

import gzip
import json
import random
from html.parser import HTMLParser
from pathlib import Path

from rft.evals.scores import summarize
from rft.record.names import TIMELINE_FILE
from rft.record.samples import TRAINING, file_name
from rft.rules.healthy import HEALTHY
from rft.runs.report import cli
from rft.runs.timeline import Timeline

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'`\u2028\u2029]]>--><!--{{7*7}}"


def lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def evaluation(name: str, right: list[bool], dataset: str = "d.jsonl", mode: str = "greedy_pass@1", **other) -> dict:
    records = [
        {
            "id": f"p{i}", "index": 0, "label": "7", "response": f"answer {i} {EVIL}", "answer": "7", "correct": ok,
            "correct_lenient": ok, "has_boxed": True, "label_valid": True, "truncated": False, "tokens": 10,
        }
        for i, ok in enumerate(right)
    ]  # fmt: skip
    settings = {"temperature": 0.0, "max_tokens": 64, "system_prompt": None, "reasoning_effort": "low", "grader": "g"}
    given = {"model": name, "kind": "adapter", "dataset": dataset, "mode": mode, "problems": "x"}
    return given | settings | {"weights": {"base": "b" * 64}} | summarize(records, mode) | {"records": records} | other


def training_line(step: int) -> dict:
    numbers = random.Random(step)
    names = [name for name in HEALTHY if not name.startswith("sft_")]  # of another kind of run
    healthy = {name: 0.3 + 0.2 * numbers.random() for name in names}
    seconds = {"rollout": 8.0, "experience": 2.0, "train": 5.0, "sync": 0.5, "step": 16.0}
    seconds |= {"evaluation": 10.0} if step % 10 == 1 else {}
    rates = {"tokens_per_second_train": 9000.0 + step, "tokens_per_second_step_per_gpu": 1414.0}
    return {"global_step": step, **healthy, **{f"time_{name}_seconds": s for name, s in seconds.items()}, **rates}


def timeline(samples: int = 20) -> Timeline:
    """What a run of two GPUs held, rollouts and training in turns."""
    made = Timeline()
    for number in range(samples):
        phase = ("rollout", "train", "")[number // 3 % 3]
        roles = {"engine": 30 * 1024, "trainer": 20 * 1024 if phase == "train" else 10 * 1024}
        point = {"time": 1e9 + 2 * number, "seconds": 2.0, "phases": {phase: 2.0}, "host_gb": {"engine": 4.0}}
        made.add(point | {"gpu_mib": {"0": roles, "10": {"engine": 5 * 1024}}})
    return made


def sample_line(problem: int, index: int, text: str = "") -> dict:
    right = index % 2 == 0
    return {
        "prompt": f"<|start|>user<|message|>question {problem}<|end|><|start|>assistant", "label": "7",
        "response": f"<|channel|>final<|message|>thought {index} {text}<|return|>", "reward": float(right),
        "correctness": float(right), "extracted_answer": "7", "response_tokens": 9, "truncated": 0.0,
    }  # fmt: skip


def whole_run(
    parent: Path, name: str = "20261121T100000Z", right: int = 40, steps: int = 30, options=(), base: str = "b" * 64
):
    """A run directory with everything in it: 60 problems, 20 solved before and `right` after training."""
    path = parent / "train_x" / name
    for folder in ("evals", "samples", "adapter"):
        (path / folder).mkdir(parents=True)
    command = [
        "/opt/place/rft/.venv/bin/python", "-m", "openrlhf.cli.train_ppo_ray", "--save_path", f"{path}/adapter",
        "--remote_rm_url", "/opt/place/rft/rewards/r.py", "--target_modules", "q_proj", "k_proj", "--flag",
        "--lr", "-1e-3", "--wandb_run", "secret", *options,
    ]  # fmt: skip
    manifest = {
        "started": "2026-11-21T10:00:00+00:00", "command": command, "git": {"commit": "c" * 40, "dirty": True},
        "tree_id": {"vllm": "t1"}, "versions": {"torch": "2.10.0"}, "inputs": {f"{path}/model": "d" * 64},
    }  # fmt: skip
    (path / "run.json").write_text(json.dumps(manifest))
    (path / "training_metrics.jsonl").write_text(lines([training_line(i) for i in range(1, steps + 1)]))
    (path / "eval_metrics.jsonl").write_text(
        lines([{"global_step": i, "eval_ood_greedy_pass@1": 0.5 + i / 100} for i in (0, 10, 20)])
    )
    spike = {"context": f"before {EVIL}", "token": "boom", "score": 3.5, "log_prob": -9.0, "advantage": 1.0}
    micro = {"log_ratio_max": 2.0, "log_ratio_min": -7.25}
    (path / "spike_log.jsonl").write_text(
        lines([{
            "global_step": 12, "rank": 0, "grad_norm": 812.0, "threshold": 50.0, "bundle": "spikes/step_12_rank_0",
            "micro_batches": [micro], "worst_tokens": [spike],
        }])
    )  # fmt: skip
    (path / "decisions.jsonl").write_text(
        lines([{"global_step": 20, "rule": "ood_drop", "action": "watch", "reason": EVIL, "numbers": {"v": 0.4}}])
    )
    (path / "phases.jsonl").write_text(lines([{"phase": "grpo", "seconds": 3700.0}]))
    (path / "memory.json").write_text('{"peak_gb": 6.37}')
    timeline().write(path / TIMELINE_FILE)
    (path / "result.json").write_text('{"steps": 30}')
    for file, count in (("before", 20), ("after", right)):
        result = evaluation(file, [i < count for i in range(60)], weights={"base": base})
        (path / "evals" / f"{file}.json").write_text(json.dumps([result]))
    for step in (10, 20):
        rows = [sample_line(p, i, EVIL if p == 1 else "carry") for p in range(3) for i in range(4)]
        (path / "samples" / file_name(TRAINING, step)).write_bytes(gzip.compress(lines(rows).encode()))
    # as older runs have them
    (path / "samples" / "eval_samples_step10.jsonl").write_text(lines([sample_line(p, 0) for p in range(50)]))
    return path


class Parsed(HTMLParser):
    """Tags, attributes that would load something, and text without scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.fetched, self.handlers, self.text, self.scripts = [], [], [], "", 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        loads = ("src", "href", "xlink:href", "data", "action", "poster", "srcset")
        self.fetched += [v for k, v in attributes if k in loads and not (v or "").startswith("#")]
        self.handlers += [k for k, _ in attributes if k.startswith("on") or k == "style"]
        self.scripts += tag == "script"

    def handle_data(self, data):
        if self.tags[-1:] != ["script"] and self.tags[-1:] != ["style"]:
            self.text += data


def page_of(*paths) -> str:
    return cli.page(cli.load_all(list(paths)))
