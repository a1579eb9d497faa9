"""Old results graded again and put together; in-training against post-hoc evaluation; what a sweep chooses."""

import gzip
import json
import runpy
import sys
from pathlib import Path

import pytest

from rft.evals.compare import add_comparisons
from rft.evals.prompts import digest
from rft.evals.regression import averages, compare_files
from rft.evals.results import read_results, regrade
from rft.evals.scores import graded, summarize
from rft.record.digest import tree_digest
from rft.runs.summary import agreement_with_loop, compared, print_rest

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "<|start|>user<|message|>sum {}<|end|><|start|>assistant"


def final(answer) -> str:
    return f"<|channel|>final<|message|>\\boxed{{{answer}}}<|return|>"


def posthoc(answers: dict, name: str = "step2") -> dict:
    """A result over problems whose label is their number."""
    records = [
        graded(
            {
                "id": f"p{i}", "label": str(i), "channel": None, "prompt": digest(PROMPT.format(i)), "index": 0,
                "response": final(answer), "tokens": 9, "truncated": False,
            }
        )
        for i, answer in answers.items()
    ]  # fmt: skip
    about = {"model": name, "kind": "adapter", "dataset": "d.jsonl", "mode": "greedy_pass@1", "grader": "old"}
    return about | {"first_prompt": PROMPT.format(0), **summarize(records, "greedy_pass@1"), "records": records}


def training_line(i: int, answer, reward: float, **more) -> dict:
    line = {"prompt": PROMPT.format(i), "response": final(answer), "label": str(i), "reward": reward}
    return line | {"response_tokens": 9, "truncated": 0.0, "correctness": reward} | more


def write_lines(file: Path, rows: list[dict]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    return file


@pytest.fixture
def command(monkeypatch, capsys):
    """A script of eval/ in this process: exit status, standard output and standard error."""

    def run(script: str, *options: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [f"{script}.py", *map(str, options)])
        capsys.readouterr()
        status = runpy.run_path(str(ROOT / "eval" / f"{script}.py"), run_name="script")["main"]()
        return status, *capsys.readouterr()

    return run


def test_equal_verdicts_agree_whatever_the_wording(tmp_path):
    rows = [training_line(0, 0, 1.0), training_line(1, 7, 0.0), training_line(2, "2.0", 1.0)]
    assert compare_files(write_lines(tmp_path / "e.jsonl", rows), posthoc({0: 0, 1: 8, 2: 2})) == (3, [])


def test_every_difference_has_its_cause(tmp_path):
    rows = [
        training_line(0, 0, 0.0),
        training_line(1, 1, 1.0),
        training_line(2, 2, 1.0, truncated=1.0),
        training_line(3, 3, 1.0),
        training_line(5, 5, 1.0),
    ]
    common, found = compare_files(write_lines(tmp_path / "e.jsonl", rows), posthoc({0: 0, 1: 8, 2: 8, 3: 3, 4: 4}))
    assert common == 4
    causes = {one.problem: (one.cause, one.training, one.posthoc) for one in found}
    assert causes.keys() == {"p0", "p1", "p2", "p4", PROMPT.format(5)}
    assert causes["p0"][0].startswith("same responses, graded differently") and causes["p0"][1:] == (0.0, 1.0)
    assert causes["p1"][0].startswith("other responses, from character 34: '1}") and causes["p1"][1:] == (1.0, 0.0)
    assert causes["p2"][0].startswith("cut by the length limit (longest: 9 tokens in training, 9 post hoc)")
    assert causes["p4"] == ("not evaluated in training", None, 1.0)
    assert causes[PROMPT.format(5)] == ("not evaluated post hoc", 1.0, None)


def test_other_prompts_and_missing_samples_are_refused(tmp_path):
    file = write_lines(tmp_path / "e.jsonl", [training_line(0, 0, 1.0) | {"prompt": PROMPT.format("0!")}])
    with pytest.raises(ValueError, match=r"no prompt is in both: in training .*sum 0!.*wanted one dataset, template"):
        compare_files(file, posthoc({0: 0}))
    bare = training_line(0, 0, 1.0)
    del bare["reward"]  # correctness is what is compared
    assert compare_files(write_lines(tmp_path / "f.jsonl", [bare]), posthoc({0: 0})) == (1, [])
    with pytest.raises(ValueError, match=r"found no samples in .*absent.jsonl.*--averages"):
        compare_files(tmp_path / "absent.jsonl", posthoc({0: 0}))


def test_averages_are_compared_with_what_the_run_logged(tmp_path):
    logged = [{"global_step": 2, "eval_sums_pass1": 0.5}, {"global_step": 4, "eval_sums_pass1": 0.75}]
    write_lines(tmp_path / "eval_metrics.jsonl", logged)
    assert averages(tmp_path, 2, posthoc({0: 0, 1: 2})) == [("eval_sums_pass1", 0.5, 0.5)]
    with pytest.raises(ValueError, match=r"no evaluation at step 3; wanted one of \[2, 4\]"):
        averages(tmp_path, 3, posthoc({0: 0}))
    named = {"eval_sums_greedy_pass@1": 0.25, "eval_sums_problems": 8, "eval_sums_sampling_avg@4": 0.5}
    write_lines(tmp_path / "eval_metrics.jsonl", [{"global_step": 2} | named])
    assert averages(tmp_path, 2, posthoc({0: 0, 1: 2})) == [("eval_sums_greedy_pass@1", 0.25, 0.5)]
    with pytest.raises(ValueError, match=r"found eval_sums_greedy_pass@1, .*wanted the mode of .* nondet_proxy_pass@8"):
        averages(tmp_path, 2, posthoc({0: 0}) | {"mode": "nondet_proxy_pass@8"})


def test_grading_again_reports_what_changed_and_keeps_the_rest():
    result = posthoc({0: 0, 1: 8})
    result["records"][1]["label"] = "8"
    (changed,) = regrade([result], "new")
    assert (changed["id"], changed["before"], changed["after"]) == ("p1", False, True)
    assert (result["greedy_pass@1"], result["grader"], len(result["records"])) == (1.0, "new", 2)
    assert regrade([result], "new") == []


def test_labels_of_today_reach_old_records(tmp_path, command):
    old, dataset, out = tmp_path / "old.json", tmp_path / "d.jsonl", tmp_path / "new.json"
    old.write_text(json.dumps([posthoc({0: 0, 1: 8}) | {"problems": "before"}]))
    problems = [
        {"input": [{"role": "user", "content": f"sum {i}"}], "label": label, "id": f"p{i}"} for i, label in
        enumerate(("0", "8", "2"))
    ]  # fmt: skip
    write_lines(dataset, problems)
    options = (old, "--regrade", "--dataset", dataset, "--output", out)
    status, shown, errors = command("eval_report", *options)
    assert status == 0, errors
    assert "p1 sample 0: answer '8' for '8' was wrong, is right" in shown and "1 of 2 verdicts changed" in shown
    (new,) = json.loads(out.read_text())
    assert (new["greedy_pass@1"], new["records"][1]["label"], new["problems"]) == (1.0, "8", tree_digest(dataset))
    kept = out.read_text()
    write_lines(tmp_path / "others.jsonl", problems)
    write_lines(tmp_path / "few" / "d.jsonl", problems[:1])
    for file, message in (
        (tmp_path / "few" / "d.jsonl", "found no problem p1, of which step2"),
        (tmp_path / "others.jsonl", "no result"),
    ):
        status, _, errors = command("eval_report", old, "--regrade", "--dataset", file, "--output", out)
        assert status == 2 and message in errors and len(errors.splitlines()) == 1 and out.read_text() == kept
    status, _, errors = command("eval_report", old, "--dataset", dataset)
    assert status == 2 and "--dataset without --regrade" in errors


def test_results_that_are_not_whole_are_refused_with_one_message(tmp_path, command):
    file = tmp_path / "old.json"
    whole = posthoc({0: 0})
    without = {key: value for key, value in whole.items() if key != "n"}
    bare = whole | {"records": [{"id": "p0"}]}
    for content, message in (
        ([], "found an empty list, wanted a list of results"),
        ([without], "result 1 has no n, wanted"),
        ([whole, 3], "result 2 is int"),
        ([bare], "result 1: wanted records with correct, id"),
        ([whole | {"mode": "sampling_pass@8"}], "result 1 has no sampling_pass@8"),
    ):
        file.write_text(json.dumps(content))
        status, shown, errors = command("eval_report", file)
        assert status == 2 and not shown and len(errors.splitlines()) == 1
        assert f"{file}: {message}" in errors and "write it again with .venv/bin/python eval/eval_posthoc.py" in errors


def test_older_results_make_a_page_but_are_not_graded_again(tmp_path, command):
    file, html, older = tmp_path / "old.json", tmp_path / "old.html", posthoc({0: 0})
    for name in ("has_boxed", "no_answer", "first_prompt"):
        del older[name]
    for record in older["records"]:
        del record["channel"]
    file.write_text(json.dumps([older]))
    status, _, errors = command("eval_report", file, "--html", html)
    assert status == 0 and "not recorded" in html.read_text(), errors
    status, _, errors = command("eval_report", file, "--regrade")
    assert status == 2 and "found records without channel" in errors and len(errors.splitlines()) == 1


def test_result_files_that_cannot_be_read_are_named(tmp_path):
    good = tmp_path / "a.json"
    good.write_text(json.dumps([posthoc({0: 0})]))
    assert len(read_results([good])) == 1
    for name, content, message in (
        ("b", "[{", "not JSON"),
        ("c", "{}", "list of results"),
        ("d", None, "found no file"),
    ):
        file = tmp_path / f"{name}.json"
        if content:
            file.write_text(content)
        with pytest.raises(ValueError, match=f"{name}.json.*{message}|{message}.*{name}.json"):
            read_results([file])
    with pytest.raises(ValueError, match=r"found step2 / d\.jsonl / greedy_pass@1 in both"):
        read_results([good, good])


def test_summary_of_a_run_says_where_loop_and_post_hoc_have_no_prompt_in_common(tmp_path, capsys):
    """Another --eval_dataset, or a template that dates its prompts: no reason to end without result.json."""
    write_lines(tmp_path / "samples" / "eval_samples_step2.jsonl", [training_line(9, 9, 1.0)])
    loop = agreement_with_loop(tmp_path, posthoc({0: 0}), 2)
    assert (loop["problems"], loop["differences"]) == (0, []) and "no prompt is in both" in loop["note"]
    cost = {"step_shares": {}, "tokens_per_second_step_median": None}
    print_rest(tmp_path, {"loop": loop, "seconds": {}, "peak_gb": None, **cost})
    assert "in the loop and post hoc: not compared, no prompt is in both" in capsys.readouterr().out
    write_lines(tmp_path / "samples" / "eval_samples_step2.jsonl", [training_line(0, 0, 1.0)])
    assert agreement_with_loop(tmp_path, posthoc({0: 0}), 2) == {"problems": 1, "differences": []}


def test_summary_compares_each_dataset_before_and_after(tmp_path):
    (tmp_path / "evals").mkdir()
    for name, right in (("before", {0: 1, 1: 2}), ("after", {0: 0, 1: 1})):
        results = [posthoc(right, name) | {"dataset": dataset} for dataset in ("a.jsonl", "b.jsonl")]
        (tmp_path / "evals" / f"{name}.json").write_text(json.dumps(results))
    found = [(r["model"], r["dataset"], "versus" in r) for r in compared(tmp_path)]
    assert found == [(m, d, m == "after") for m in ("before", "after") for d in ("a.jsonl", "b.jsonl")]
    (tmp_path / "evals" / "after.json").write_text(json.dumps(results[:1]))
    with pytest.raises(ValueError, match="of the same datasets"):
        compared(tmp_path)


def test_regression_command_tells_by_its_status(tmp_path, command):
    out = tmp_path / "out.json"
    out.write_text(json.dumps([posthoc({0: 0, 1: 1}), posthoc({0: 0, 1: 8}, "base")]))
    write_lines(tmp_path / "samples" / "eval_samples_step2.jsonl.gz", [training_line(i, i, 1.0) for i in (0, 1)])
    options = ("--run", tmp_path, "--step", "2", "--posthoc", out)
    status, shown, _ = command("eval_regression_check", *options, "--model", "step2")
    assert status == 0 and "greedy_pass@1 on d.jsonl: 2 problems in both, 0 differ" in shown
    status, shown, _ = command("eval_regression_check", *options, "--model", "base")
    assert status == 1 and "p1: 1.00 0.00 (other responses" in shown
    assert command("eval_regression_check", *options, "--model", "base", "--allow", "1")[0] == 0
    status, _, errors = command("eval_regression_check", *options)
    assert status == 2 and "found 2 results, wanted one; choose by --model from ['base', 'step2']" in errors


def test_report_command_puts_files_together(tmp_path, command):
    names = [tmp_path / f"{name}.json" for name in ("before", "after")]
    for file, answers in zip(names, ({0: 0, 1: 8}, {0: 0, 1: 1}), strict=True):
        result = posthoc(answers, file.stem)
        about = ("problems", "max_tokens", "temperature", "top_p", "seed", "system_prompt", "reasoning_effort")
        about += ("template", "served", "weights", "tree_id")
        file.write_text(json.dumps([dict.fromkeys(about) | result]))
    out = tmp_path / "both.json"
    status, shown, errors = command(
        "eval_report", *names, "--regrade", "--output", out, "--html", tmp_path / "both.html"
    )
    assert status == 0, errors
    assert "0 of 4 verdicts changed" in shown and "after - before" in shown
    both = json.loads(out.read_text())
    assert both[1]["versus"]["won"] == 1 and both[0]["grader"] == both[1]["grader"] != "old"
    assert "p1: 0 of" in (tmp_path / "both.html").read_text()


def sweep(name: str):
    return runpy.run_path(str(ROOT / "eval" / "eval_model_sweep.py"), run_name="script")[name]


def test_checkpoints_are_found_in_the_order_of_their_steps(tmp_path):
    for name in ("step_2", "step_10", "step_1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
    assert [name for name, _ in sweep("found_adapters")(tmp_path)] == ["step_1", "step_2", "step_10"]
    with pytest.raises(ValueError, match="found no adapter below"):
        sweep("found_adapters")(tmp_path / "step_1" / "none")


def test_best_checkpoint_comes_with_what_it_is_not_told_apart_from(capsys):
    right = {i: i for i in range(40)}
    results = [posthoc({i: (i if i < many else 99) for i in right}, name) for name, many in
               (("base", 10), ("step_1", 11), ("step_2", 38), ("step_3", 36))]  # fmt: skip
    assert sweep("print_ranking")(add_comparisons(results)) == ["step_2", "step_3", "step_1"]
    shown = capsys.readouterr().out
    assert "best by greedy_pass@1 on d.jsonl: step_2 0.950" in shown
    assert "reach its value: step_3\n" in shown and "\nbetter than base (p" in shown
    sweep("print_ranking")(add_comparisons(results[:2]))
    assert "not told apart from base either" in capsys.readouterr().out


def test_baseline_says_what_to_do_before_training():
    advice = runpy.run_path(str(ROOT / "eval" / "eval_baseline_s0.py"), run_name="script")["advice"]
    fine = {"mode": "m", "m": 0.4, "has_boxed": 0.96, "truncated": 0.1}
    assert advice(fine) == ["96.0% boxed: no SFT needed"]
    lines = advice(fine | {"m": 0, "has_boxed": 0.5, "truncated": 0.6})
    assert "train the format first" in lines[0] and "raise --max-tokens" in lines[1] and "easier set" in lines[2]
