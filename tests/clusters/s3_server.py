"""S3 over HTTP for processes of a test: moto answers, behind a small server of the standard library."""

import contextlib
import ctypes
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
from botocore.awsrequest import AWSPreparedRequest
from botocore.compat import HTTPHeaders
from host_network import Host
from moto import mock_aws
from moto.core.models import botocore_stubber

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
HOP = {"connection", "content-length", "transfer-encoding"}  # headers that each server sets itself


class Handler(BaseHTTPRequestHandler):
    """Hands a request to moto, which answers for Amazon's address, and its answer back."""

    protocol_version = "HTTP/1.1"
    lock = threading.Lock()  # moto keeps its state in plain dictionaries
    refused = ""  # a method that is answered as to somebody without the right

    def answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = HTTPHeaders()
        for name, value in self.headers.items():
            headers[name] = value
        url = f"https://s3.amazonaws.com{self.path}"
        if self.command == self.refused:
            text = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            self.send_response(403)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            return
        with self.lock:
            request = AWSPreparedRequest(self.command, url, headers, content, stream_output=False)
            status, headers, body = botocore_stubber.process_request(request)
        body = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in HOP:
                self.send_header(name, str(value))
        # An answer to HEAD has the length of what it is about.
        lengths = [value for name, value in headers.items() if name.lower() == "content-length"]
        self.send_header("Content-Length", str(lengths[0] if self.command == "HEAD" and lengths else len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

    def log_message(self, *_: object) -> None:
        """Nothing: the test prints what it needs."""


@contextlib.contextmanager
def store(bucket: str) -> Iterator["boto3.client"]:
    """An S3 with one bucket, in this process: its client."""
    with mock_aws():
        s3 = boto3.client("s3", region_name="us-east-1")
        s3.create_bucket(Bucket=bucket)
        yield s3


@contextlib.contextmanager
def listening(host: Host | None = None) -> Iterator[dict[str, str]]:
    """`store` for other processes, of this machine or of the network of a host: the variables by which they find it."""
    own = socket_of(host) if host else socket.create_server(("127.0.0.1", 0))
    server = ThreadingHTTPServer(own.getsockname(), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = own
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield KEYS | {"AWS_ENDPOINT_URL": "http://{}:{}".format(*own.getsockname())}
    finally:
        server.shutdown()
        server.server_close()


def socket_of(host: Host) -> socket.socket:
    """A socket that listens on a host, for this process: a socket stays in the network of the thread that makes it."""
    made = []

    def make() -> None:
        with open(f"/proc/{host.holder.pid}/ns/net") as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), 0):
                raise OSError(ctypes.get_errno(), "setns")
        made.append(socket.create_server((host.address, 0)))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


@contextlib.contextmanager
def served(bucket: str) -> Iterator[tuple[dict[str, str], "boto3.client"]]:
    """`store` and `listening` on this machine."""
    with store(bucket) as s3, listening() as environment:
        yield environment, s3
