# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The program that a unit's start waits with."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "roles/sglang_server/files/wait-ready"


@pytest.fixture
def url() -> Iterator[str]:
    """An engine that loads at the first request and is ready from the second on."""
    statuses = iter([503])

    class Engine(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(next(statuses, 200))
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Nothing on the terminal."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def wait(url: str, timeout: float = 20, **environment: str) -> subprocess.CompletedProcess[str]:
    proxies = {"http_proxy": "http://127.0.0.1:9", "PATH": os.environ["PATH"]}
    argv = [sys.executable, str(PROGRAM), url]
    return subprocess.run(argv, env=proxies | environment, timeout=timeout, capture_output=True, text=True, check=False)


def test_it_returns_when_the_engine_is_ready(url):
    assert wait(url, MAINPID=str(os.getpid())).returncode == 0


def test_it_fails_when_the_engine_has_ended():
    """An exception at the start of SGLang 0.5.23 ends the main process with 1, and systemd waits for this program."""
    engine = subprocess.Popen(["sleep", "0.5"])
    threading.Thread(target=engine.wait).start()
    ended = wait("http://127.0.0.1:9", MAINPID=str(engine.pid))
    assert ended.returncode == 1
    assert "The engine has ended" in ended.stderr


@pytest.mark.parametrize("environment", [{}, {"MAINPID": str(os.getpid())}], ids=["unknown", "runs"])
def test_it_goes_on_waiting_for_an_engine_that_does_not_listen_yet(environment):
    with pytest.raises(subprocess.TimeoutExpired):
        wait("http://127.0.0.1:9", timeout=2.5, **environment)
