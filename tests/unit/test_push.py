"""What goes to the hub: the adapter and a card that says what the run recorded, nothing of this machine."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub
import pytest
from served_run_by_hand import finished, with_result

from rft.push import cli

PAGE = "https://huggingface.co/owner/tiny-sums"  # as the public hub would answer; nothing asks it
REPO = ["--repo", "owner/tiny-sums", "--base-model", "owner/tiny"]


@pytest.fixture
def run(tmp_path, checkpoint):
    run = finished(tmp_path / "train_grpo_tiny/20261122T100000Z", checkpoint)
    with_result(run)
    return run


def test_card_says_what_was_measured_and_nothing_of_this_machine(run, checkpoint, capsys):
    assert cli.main([str(run), *REPO]) == 0
    assert "nothing was sent" in capsys.readouterr().out
    assert sorted(file.name for file in (run / "hub").iterdir()) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    text = (run / "hub/README.md").read_text()
    assert (
        "| heldout.jsonl | `greedy_pass@1` | 200 | 0.500 (0.440-0.560) | 0.750 (0.690-0.810) | +25.0 (+18.0 to +32.0)"
        in text
    )
    assert "| `--actor_learning_rate` | 3e-3 |" in text
    assert "0123abcd with local changes" in text
    card = huggingface_hub.ModelCard(text).data
    assert (card.base_model, card.library_name) == ("owner/tiny", "peft")
    assert card.eval_results[0].metric_value == 0.75
    for file in ("README.md", "adapter_config.json"):
        written = (run / "hub" / file).read_text()
        assert str(checkpoint) not in written
        assert str(run) not in written
        assert "a-secret-key" not in written
    assert json.loads((run / "hub/adapter_config.json").read_text())["base_model_name_or_path"] == "owner/tiny"
    assert (run / "adapter/adapter_model.safetensors").samefile(run / "hub/adapter_model.safetensors")


def test_a_chain_of_adapters_is_named_without_this_machines_folders(run, capsys):
    manifest = json.loads((run / "run.json").read_text())
    link = {"adapter": "/here/sft/1/adapter", "run": "/here/train_sft_20b/1", "base": "/here/gpt-oss-20b"}
    (run / "run.json").write_text(json.dumps(manifest | {"chain": [link | {"sha256": "ab" * 32}]}))
    assert cli.main([str(run), *REPO]) == 0
    text = (run / "hub/README.md").read_text()
    assert "- trained from: gpt-oss-20b → train_sft_20b/1 (sha256 abababababab)\n" in text and "/here" not in text


def test_best_adapter_says_how_it_was_chosen(run):
    """Its numbers are those of the problems that it was not chosen on; without them the card has none."""
    assert cli.main([str(run), *REPO, "--best"]) == 0
    text = (run / "hub/README.md").read_text()
    assert "The adapter of step 3, the best of the evaluations in the loop" in text
    assert "0.750" not in text  # that is the last adapter's
    result = json.loads((run / "result.json").read_text())
    measured = {"dataset": "heldout.jsonl", "mode": "greedy_pass@1", "n": 150, "value": 0.8, "interval95": [0.73, 0.86]}
    measured |= {
        "last": 0.75,
        "sentence": "Not told apart",
        "remark": "on the 150 of 200 problems that it was not chosen on",
    }
    (run / "result.json").write_text(json.dumps(result | {"best": {"step": 3, "evaluations": [measured]}}))
    assert cli.main([str(run), *REPO, "--best"]) == 0
    text = (run / "hub/README.md").read_text()
    assert "| heldout.jsonl | `greedy_pass@1` | 150 |  | 0.800 (0.730-0.860) |" in text
    assert "Not told apart (heldout.jsonl, on the 150 of 200 problems that it was not chosen on)." in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repo", "tiny"], "wanted OWNER/NAME"),
        (["--repo", "a b/c"], "Repo id must"),
        (["--repo", "owner/tiny"], "add --base-model"),
    ],
)
def test_bad_names_write_nothing(run, arguments, message, capsys):
    assert cli.main([str(run), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (run / "hub").exists()


@contextmanager
def hub(status: int = 200):
    """A hub at an address of this machine; yields it and what it was sent: (path, body)."""
    sent = []

    class Hub(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            sent.append((self.path, body))
            answer = {"url": PAGE, "commitUrl": f"{PAGE}/commit/1"}
            answer |= {"commitOid": "1" * 40, "pullRequestUrl": None, "error": "no"}
            if "/preupload/" in self.path:
                names = [file["path"] for file in json.loads(body)["files"]]
                answer["files"] = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            self.answer(answer)

        def do_GET(self):
            self.answer({"id": "owner/tiny-sums", "sha": "0" * 40, "siblings": []})

        def answer(self, content: dict):
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", sent
    finally:
        server.shutdown()


@pytest.fixture
def offered(monkeypatch):
    """`offered(address)`: that hub is the one, and a token is there."""

    def use(address: str) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(cli, "ENDPOINT", address)

    return use


def test_upload_sends_the_three_files_in_one_commit(run, offered, capsys):
    with hub() as (address, sent):
        offered(address)
        assert cli.main([str(run), *REPO, "--upload"]) == 0
    assert "/owner/tiny-sums/commit/1" in capsys.readouterr().out
    (commit,) = [body for path, body in sent if "/commit/" in path]
    lines = [json.loads(line) for line in commit.splitlines()]
    names = [line["value"]["path"] for line in lines if line["key"] == "file"]
    assert sorted(names) == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    made = json.loads(next(body for path, body in sent if path.endswith("/repos/create")))
    assert made.get("private") is True or made.get("visibility") == "private"  # of the hub's library before 1.0, since


def test_a_hub_that_refuses_is_one_message(run, offered, capsys):
    with hub(status=403) as (address, _):
        offered(address)
        assert cli.main([str(run), *REPO, "--upload"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: the hub refused owner/tiny-sums")
    assert "hf auth login" in error
