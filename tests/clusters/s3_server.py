"""S3 over HTTP for processes of a test: moto answers, behind a small server of the standard library."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
from botocore.awsrequest import AWSPreparedRequest
from botocore.compat import HTTPHeaders
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
def served(bucket: str) -> Iterator[tuple[dict[str, str], "boto3.client"]]:
    """An S3 with one bucket: the variables by which a process finds it, and a client of this process."""
    with mock_aws():
        s3 = boto3.client("s3", region_name="us-east-1")
        s3.create_bucket(Bucket=bucket)
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}, s3
        finally:
            server.shutdown()
            server.server_close()
