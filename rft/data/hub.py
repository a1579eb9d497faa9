"""Fetch the published sets from the Hugging Face hub, each at the commit that a file beside the data records."""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rft.data.sets import HUB, HubSet, Input, split_files
from rft.record.digest import file_sha256
from rft.record.files import replace_json

LOCK = "data_sources.json"
TIMEOUT_S = 10  # of one question to the hub; nothing is asked twice
WITHOUT = "download the sets elsewhere and pass --from DIR (docs/data.md), or name a mirror of the hub in HF_ENDPOINT"


def fetch(out: Path, sets: Sequence[HubSet] = HUB) -> list[Input]:
    """The files of some data sets in the hub's local cache, those that are missing downloaded.

    The first time, each set's branch `main` is resolved to a commit, which is kept in `out` with its files before
    anything is downloaded; from then on that commit is taken. With HF_HUB_OFFLINE, and where the hub cannot be
    reached, the cache serves what it has. HF_ENDPOINT, HF_HOME and HF_HUB_CACHE are huggingface_hub's own.

    Raises:
        ValueError: the hub cannot be reached or refuses, a set has no such files, or the record is none.
    """
    from huggingface_hub import hf_hub_download

    known = read_lock(out / LOCK)
    pinned = known | {each.repo: resolve(each, sets) for each in sets if each.repo not in known}
    if pinned != known:
        replace_json(out / LOCK, pinned)
    inputs = []
    for each in sets:
        commit = pinned[each.repo]["revision"]
        for name in pinned[each.repo]["files"]:
            with named(each.repo, sets):
                path = hf_hub_download(each.repo, name, repo_type="dataset", revision=commit, etag_timeout=TIMEOUT_S)
            require_whole(Path(path))
            inputs.append(Input(each.kind, Path(path), name, each.repo, commit))
    return inputs


def require_whole(path: Path) -> None:
    """The cache names the content of a large file by its sha256; ValueError where that does not fit."""
    content = path.resolve()
    if re.fullmatch("[0-9a-f]{64}", content.name) and file_sha256(content) != content.name:
        raise ValueError(
            f"found {path} cut or changed in the cache, wanted the content with its sha256; "
            f"rm {shlex.quote(str(content))} and run this again"
        )


def resolve(hub_set: HubSet, sets: Sequence[HubSet]) -> dict:
    """`revision` (the commit that `main` is now) and `files` of a set, from the hub, else from its local cache."""
    from huggingface_hub import HfApi, constants

    with named(hub_set.repo, sets):
        try:
            if constants.HF_HUB_OFFLINE:
                raise ConnectionError("HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set")
            info = HfApi().dataset_info(hub_set.repo, revision="main", timeout=TIMEOUT_S)
            commit, names = info.sha, [sibling.rfilename for sibling in info.siblings]
        except unreachable():
            cached = cached_snapshot(hub_set.repo)
            if cached is None:
                raise
            commit = cached.name
            names = [path.relative_to(cached).as_posix() for path in cached.rglob("*") if path.is_file()]
    return {"revision": commit, "files": split_files(hub_set, names)}


def unreachable() -> tuple[type[Exception], ...]:
    """What the hub's library raises where nobody answers: of requests, since its release 1.0 of httpx."""
    from requests import ConnectionError as NoConnection
    from requests import Timeout

    with suppress(ImportError):
        from httpx import TransportError

        return ConnectionError, NoConnection, Timeout, TransportError
    return ConnectionError, NoConnection, Timeout


def cached_snapshot(repo: str) -> Path | None:
    """A set's folder in the hub's local cache, named as its commit: that of `main`, else the only one, else None."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    place = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="dataset")
    main, snapshots = place / "refs" / "main", sorted(place.glob("snapshots/*"))
    if main.is_file():  # a fetched commit alone leaves none
        snapshots = [path for path in snapshots if path.name == main.read_text(encoding="utf-8")]
    return snapshots[0] if len(snapshots) == 1 else None


@contextmanager
def named(repo: str, sets: Sequence[HubSet]) -> Iterator[None]:
    """What the hub or the way to it refuses of `repo`, as one message that says how to go on with all `sets`."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
    from requests import RequestException

    try:
        yield
    except (RequestException, HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, *unreachable()) as error:
        cause = error.__cause__ or error
        first = next(iter(re.findall(r"\[Errno -?\d+\] [\w ]+|timed out", str(cause)) or str(cause).splitlines()), "")
        unset = "unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE, " if constants.HF_HUB_OFFLINE else ""
        raise ValueError(
            f"found no {repo} at {constants.ENDPOINT}, nor in the cache {constants.HF_HUB_CACHE} "
            f"({type(cause).__name__}: {first[:160]}); wanted {', '.join(each.repo for each in sets)}; {unset}{WITHOUT}"
        ) from None


def read_lock(path: Path) -> dict[str, dict]:
    """`revision` and `files` by repository; empty where there is no record yet."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {repo: {"revision": str(e["revision"]), "files": list(e["files"])} for repo, e in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"{path}: found no record of revisions, wanted the one that this command writes; "
            "move the file away, and what `main` is now is taken"
        ) from None
