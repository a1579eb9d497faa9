"""What the watch of a launch takes for an answer of its server: any status; a port that only accepts has none."""

import socket
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from rft.runs import service


@pytest.mark.parametrize("status", [200, 401, 500, 503])
def test_a_busy_server_answers(status, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # where nothing is

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert service.answers(f"http://127.0.0.1:{server.server_port}")


def test_a_port_that_accepts_and_says_nothing_has_no_answer(monkeypatch):
    monkeypatch.setattr(service, "ASKED_SECONDS", 0.2)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert not service.answers(url)
    assert not service.answers(url)  # nor one that is closed
