"""Publish a run's adapter on the Hugging Face hub: first what would go there, then with --upload.

    .venv/bin/python -m rft.push RUN --repo OWNER/NAME [--best] [--upload] [--public]

Writes RUN/hub/: the model card, the adapter's configuration without this machine's paths, the weights. Look at it; the
same command with --upload makes the repository, private unless --public, and sends those files in one commit. The token
is `hf auth login`'s, or HF_TOKEN. Exit status 0, 1 where the hub refuses, 2 bad use.
"""

import argparse
import shutil
import sys
from pathlib import Path

from rft.record.files import replace_bytes
from rft.runs.find import chosen_run
from rft.serve.served_run import ServedRun, read_run

ENDPOINT = None  # of the hub: HF_ENDPOINT's, or the public one


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    from rft.push import folder

    try:
        validate_repo_id(args.repo)
        if "/" not in args.repo:
            raise ValueError(f"found --repo {args.repo}; wanted OWNER/NAME")
        served = read_run(chosen_run(args.run), args.best, args.base)
        content = folder.files(served, args.repo, folder.hub_name(served, args.base_model))
        place = write(served, content)
    except (ValueError, OSError, HFValidationError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name in content:
        print(f"{(place / name).stat().st_size:12,d} bytes  {place / name}")
    if not args.upload:
        print(f"nothing was sent; read {place / 'README.md'}, then run the same command with --upload")
        return 0
    return upload(place, args.repo, not args.public)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m rft.push", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run's directory, or a folder of runs, whose newest is taken")
    parser.add_argument("--repo", required=True, metavar="OWNER/NAME", help="the repository on the hub")
    parser.add_argument("--best", action="store_true", help="the best adapter by the evaluations in the loop")
    parser.add_argument("--base", type=Path, metavar="DIR", help="the base checkpoint, where it has moved")
    parser.add_argument("--base-model", metavar="OWNER/NAME", help="the base on the hub (default: by its folder)")
    parser.add_argument("--upload", action="store_true", help="send it")
    parser.add_argument("--public", action="store_true", help="make the repository public, where it is new")
    return parser


def write(served: ServedRun, content: dict[str, bytes | Path]) -> Path:
    """RUN/hub with these files alone; weights are linked, since they may be large."""
    place = served.run / "hub"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, found in content.items():
        if isinstance(found, Path):
            (place / name).symlink_to(found)
        else:
            replace_bytes(place / name, found)
    return place


def upload(place: Path, repo: str, private: bool) -> int:
    """Make the repository where it is missing, and send the folder in one commit."""
    import requests
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    api = HfApi(ENDPOINT)
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        commit = api.upload_folder(repo_id=repo, folder_path=place, commit_message="Adapter and its card")
    except (HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled, requests.RequestException) as error:
        wanted = "a token that may write there (.venv/bin/hf auth login, or HF_TOKEN), and the network"
        offline = "; unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE" if constants.HF_HUB_OFFLINE else ""
        print(f"error: the hub refused {repo}: {error}\n  wanted: {wanted}{offline}", file=sys.stderr)
        return 1
    print(f"sent: {commit.commit_url}")
    return 0
