"""Places in S3: `s3://BUCKET/KEY`, a file or a folder, and copies of them on this disk."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rft.record.files import replace_json
from rft.sagemaker.aws import AwsError, message, told

if TYPE_CHECKING:
    from botocore.client import BaseClient

SCHEME = "s3://"
RECORD = ".etags.json"


class Place(NamedTuple):
    """A bucket and a key; a key that ends with `/`, or is empty, is a folder."""

    bucket: str
    key: str

    def __truediv__(self, name: str) -> "Place":
        return Place(self.bucket, f"{self.key.rstrip('/')}/{name}".lstrip("/"))

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"


def parse(url: str) -> Place:
    """A place from its URL. Raises ValueError where it is none."""
    bucket, _, key = url.removeprefix(SCHEME).partition("/")
    if not url.startswith(SCHEME) or not bucket:
        raise ValueError(f"found {url!r}, wanted s3://BUCKET/KEY; correct it")
    return Place(bucket, key)


def objects(s3: "BaseClient", folder: Place) -> dict[str, dict]:
    """What lies below a folder: name relative to it -> S3's entry, with `Size` and `ETag`."""
    prefix, found = f"{folder.key.rstrip('/')}/".lstrip("/"), {}
    with told():
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=folder.bucket, Prefix=prefix):
            for entry in page.get("Contents", []):
                found[entry["Key"].removeprefix(prefix)] = entry
    files = {name: entry for name, entry in found.items() if name and not name.endswith("/")}
    for name in files:
        if name.startswith("/") or ".." in name.split("/"):
            raise AwsError(
                message("a name leads out of its folder", f"{folder}/{name}", "a plain path", "rename it in S3")
            )
    return files


def fetch(s3: "BaseClient", url: str, cache: Path) -> Path:
    """A copy of a file or of all that lies below a folder; what S3 has not changed (ETag) is not read again.

    Returns:
        The file's or folder's place below `cache`, under the name that it has in S3.

    Raises:
        AwsError: nothing is there, or AWS gave no answer.
        ValueError: `url` is none.
    """
    place = parse(url)
    folder = cache / hashlib.sha256(url.encode()).hexdigest()[:16]
    with told():
        listed = s3.list_objects_v2(Bucket=place.bucket, Prefix=place.key.rstrip("/"), MaxKeys=1).get("Contents", [])
    is_file = bool(listed) and listed[0]["Key"] == place.key
    name = place.key.rstrip("/").rpartition("/")[2] or place.bucket
    entries = {name: listed[0]} if is_file else {f"{name}/{n}": e for n, e in objects(s3, place).items()}
    if not entries:
        raise AwsError(
            message("nothing is there", url, "a file or a folder in S3", "correct the address, or upload it")
        )
    record = folder / RECORD
    known = json.loads(record.read_text()) if record.is_file() else {}
    for gone in known.keys() - entries.keys():
        (folder / gone).unlink(missing_ok=True)
    known = {relative: etag for relative, etag in known.items() if relative in entries}
    for relative, entry in entries.items():
        file = folder / relative
        if known.get(relative) != entry["ETag"] or not file.is_file():
            download(s3, Place(place.bucket, entry["Key"]), file)
            known[relative] = entry["ETag"]
            replace_json(record, known)
    return folder / name


def download(s3: "BaseClient", place: Place, file: Path) -> None:
    """One file, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    try:
        with told():
            s3.download_file(place.bucket, place.key, str(partial))
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
