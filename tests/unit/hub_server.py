"""A hub of data sets on the loopback: what huggingface_hub asks of one, answered from a folder. For tests only."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves `folder/OWNER/NAME/FILE` as data sets; `commit` is what `main` is; `asked` are the requests so far."""

    daemon_threads = True

    def __init__(self, folder: Path):
        self.folder, self.commit, self.asked = folder, COMMIT, []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """`/api/datasets/REPO/revision/REV` and `/datasets/REPO/resolve/REV/FILE`, as the hub answers them."""

    def do_GET(self):
        self.answer(with_body=True)

    def do_HEAD(self):
        self.answer(with_body=False)

    def answer(self, with_body: bool) -> None:
        path = unquote(self.path.partition("?")[0])
        self.server.asked.append(f"{self.command} {path}")
        found = re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/revision/([^/]+)", path)
        if found and self.known(*found.groups()):
            place = self.server.folder / found[1]
            names = sorted(file.relative_to(place).as_posix() for file in place.rglob("*") if file.is_file())
            info = {"id": found[1], "sha": self.server.commit, "siblings": [{"rfilename": name} for name in names]}
            return self.send(200, json.dumps(info).encode(), {"Content-Type": "application/json"}, with_body)
        found = re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if found and self.known(found[1], found[2]) and (file := self.server.folder / found[1] / found[3]).is_file():
            body = file.read_bytes()
            etag = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"'}
            return self.send(200, body, etag, with_body)
        return self.send(404, b"", {"X-Error-Code": "RepoNotFound"}, with_body)

    def known(self, repo: str, revision: str) -> bool:
        return (self.server.folder / repo).is_dir() and revision in ("main", self.server.commit)

    def send(self, status: int, body: bytes, headers: dict, with_body: bool) -> None:
        self.send_response(status)
        for name, value in {"X-Repo-Commit": self.server.commit, "Content-Length": len(body), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing on the terminal."""


@contextmanager
def serve(folder: Path) -> Iterator[Hub]:
    with Hub(folder) as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
