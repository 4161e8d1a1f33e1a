# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is said of a running instance: a systemctl that is a script, small trees for /proc, and a real HTTP server."""

from __future__ import annotations

import datetime
import http.server
import importlib.util
import json
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import health

RUNNING = """\
MainPID=812
Result=success
NRestarts=2
ExecMainStartTimestamp=Sun 2026-11-29 20:03:13.250000 UTC
ActiveState=activating
SubState=start-post
Job=79
NeedDaemonReload=no
"""
STARTED = datetime.datetime(2026, 11, 29, 20, 3, 13, 250000, tzinfo=datetime.UTC).timestamp()
DIGEST = "0123456789ab"


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Put a program on the PATH that notes its arguments and prints a text."""

    def make(name, output, status=0):
        (tmp_path / f"{name}.out").write_bytes(output if isinstance(output, bytes) else output.encode())
        (tmp_path / name).write_text(
            f'#!/bin/sh\necho "$@" > {tmp_path}/{name}.arguments\ncat {tmp_path}/{name}.out\nexit {status}\n'
        )
        (tmp_path / name).chmod(0o755)
        return tmp_path / f"{name}.arguments"

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return make


@pytest.fixture
def unit_of(command):
    """The state of a unit that systemctl describes so."""

    def read(output, status=0):
        command("systemctl", output, status)
        return health.unit_state("tiny")

    return read


@pytest.fixture
def answering():
    """A server on loopback that answers every request alike; gives its URL and what it was asked."""
    servers = []

    def serve(status, body):
        asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self):
                length = int(self.headers.get("Content-Length") or 0)
                asked.append((self.path, json.loads(self.rfile.read(length) or b"null")))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

            do_GET = do_POST = answer  # noqa: N815 (names of http.server)

            def log_message(self, *_arguments):
                """Nothing on the terminal."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return f"http://127.0.0.1:{server.server_port}", asked

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_unit_that_systemd_has_not_read_again_is_outdated(command):
    command("systemctl", RUNNING.replace("NeedDaemonReload=no", "NeedDaemonReload=yes"))
    assert health.unit_state("tiny").outdated


def test_a_unit_is_read_from_what_systemctl_shows(command):
    asked = command("systemctl", RUNNING)
    assert health.unit_state("tiny") == health.UnitState("activating", "start-post", "success", 812, 2, STARTED, True)
    arguments = asked.read_text().split()
    assert arguments[:3] == ["show", "sglang-tiny.service", "--timestamp=us+utc"]
    wanted = arguments[3].removeprefix("--property=").split(",")
    assert set(wanted) == {line.partition("=")[0] for line in RUNNING.splitlines()}


def test_an_unknown_unit_is_over_and_was_never_started(unit_of):
    unit = unit_of(
        "MainPID=0\nResult=success\nNRestarts=0\nExecMainStartTimestamp=\nActiveState=inactive\nSubState=dead\nJob=\n"
    )
    assert unit == health.UnitState("inactive", "dead", "success", 0, 0, 0, False)
    assert unit.over


def test_a_process_that_ended_was_started_at_no_time(unit_of):
    unit = unit_of(RUNNING.replace("MainPID=812", "MainPID=0"))
    assert (unit.main_pid, unit.started) == (0, 0)


def test_a_systemctl_that_fails_says_nothing_of_the_unit(unit_of):
    assert unit_of("", status=1) == health.UnitState("", "", "", 0, 0, 0, False)


@pytest.mark.parametrize(
    ("active", "job", "over"),
    [
        ("active", "", False),
        ("activating", "", False),
        ("deactivating", "", False),
        ("inactive", "", True),
        ("failed", "", True),
        ("inactive", "79", False),
        ("failed", "79", False),
    ],
)
def test_a_unit_is_over_when_nothing_runs_and_nothing_is_to_come(unit_of, active, job, over):
    unit = unit_of(RUNNING.replace("=activating", f"={active}").replace("Job=79", f"Job={job}"))
    assert unit.over is over


def test_the_journal_is_read_whatever_its_bytes(command):
    asked = command("journalctl", b"loading\nna\xffve\n")
    assert health.journal("tiny", 40) == ["loading", "na\ufffdve"]
    assert asked.read_text().split() == ["--unit", "sglang-tiny.service", "--lines", "40", "--output=cat"]


def process(root: Path, environment: bytes) -> Path:
    (root / "proc/812").mkdir(parents=True)
    (root / "proc/812/environ").write_bytes(environment)
    return root


def test_the_digest_is_read_from_the_process(tmp_path):
    other = b"NOT_SGLANG_PLAN_DIGEST=x\0"
    root = process(tmp_path, other + b"A=1\0SGLANG_PLAN_DIGEST=" + DIGEST.encode() + b"\0B=\xff\0")
    assert health.running_digest(812, root) == DIGEST
    assert health.running_digest(813, root) == ""


@pytest.mark.parametrize("environment", [b"", b"A=1\0", b"A=SGLANG_PLAN_DIGEST=x\0"])
def test_a_process_without_a_digest(tmp_path, environment):
    assert health.running_digest(812, process(tmp_path, environment)) == ""


UNIT = health.UnitState("active", "running", "success", 812, 0, STARTED)


@pytest.fixture
def compared(tmp_path, monkeypatch):
    """Judge a process of the digest ``running`` by a unit that was written ``age`` seconds before it."""

    def judge(unit, running, age, **secrets):
        monkeypatch.setattr(health, "running_digest", lambda _pid: running)
        path = tmp_path / "sglang-tiny.service"
        if age is not None:
            path.touch()
            os.utime(path, (STARTED - age, STARTED - age))
        return health.runs_from_its_unit(unit, DIGEST, path, **secrets)

    return judge


@pytest.mark.parametrize(
    ("unit", "running", "age", "expected"),
    [
        (UNIT, DIGEST, 60, True),
        (UNIT, DIGEST, 0, True),
        (UNIT, DIGEST, -1, False),
        (UNIT, DIGEST, None, False),
        (UNIT, "another", 60, False),
        (UNIT, "", 60, False),
        (replace(UNIT, active="activating", sub="start-post"), DIGEST, 60, True),
        (replace(UNIT, active="failed"), DIGEST, 60, False),
        (replace(UNIT, main_pid=0), DIGEST, 60, False),
        (replace(UNIT, outdated=True), DIGEST, 60, False),
    ],
    ids=[
        "same",
        "same second",
        "unit is newer",
        "no unit",
        "other plan",
        "no plan",
        "starting",
        "failed",
        "no process",
        "not read again",
    ],
)
def test_an_instance_runs_from_its_unit(compared, unit, running, age, expected):
    assert compared(unit, running, age) is expected


@pytest.mark.parametrize(("age", "expected"), [(60, True), (0, True), (-1, False), (None, False)])
def test_a_key_that_is_newer_than_the_process_is_not_in_force(compared, tmp_path, age, expected):
    secrets = tmp_path / "secrets.yml"
    if age is not None:
        secrets.touch()
        os.utime(secrets, (STARTED - age, STARTED - age))
    assert compared(UNIT, DIGEST, 60, secrets=str(secrets)) is expected


@pytest.mark.parametrize(("status", "expected"), [(200, True), (503, False), (404, False)])
def test_health_is_what_the_endpoint_says(answering, status, expected):
    url, asked = answering(status, b"")
    assert health.healthy(url) is expected
    assert asked == [("/health", None)]


def test_no_proxy_is_asked(answering, monkeypatch):
    """The room reads the environment once, so it is loaded afresh."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    found = importlib.util.spec_from_file_location("fresh", health.__file__)
    fresh = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "fresh", fresh)
    found.loader.exec_module(fresh)
    url, _asked = answering(200, b"")
    assert fresh.healthy(url)


def test_who_does_not_listen_or_speaks_no_http_is_not_healthy(answering, tmp_path):
    assert health.healthy("http://127.0.0.1:9") is False
    assert health.healthy("http://[::1") is False
    url, _asked = answering(0, b"")  # answers with status line "HTTP/1.0 0", which is none
    assert health.healthy(url) is False


def answer(**changes: object) -> dict[str, object]:
    return {"choices": [{"text": " fox"}], "usage": {"completion_tokens": 4}} | changes


def test_a_completion_is_asked_for_and_given(answering):
    url, asked = answering(200, answer())
    assert health.complete(url, "tiny", "The quick", tokens=4) == answer()
    ((path, body),) = asked
    assert path == "/v1/completions"
    assert body == {"model": "tiny", "prompt": "The quick", "max_tokens": 4, "temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize(("given", "sent"), [({}, None), ({"key": 'a"b$c%d'}, 'Bearer a"b$c%d')])
def test_the_key_is_sent_as_it_is(answering, monkeypatch, given, sent):
    url, _asked = answering(200, answer())
    headers = []
    opened = health._DIRECT.open
    monkeypatch.setattr(
        health._DIRECT, "open", lambda request, **more: headers.append(request) or opened(request, **more)
    )
    health.complete(url, "tiny", "The quick", tokens=4, **given)
    assert headers[0].get_header("Authorization") == sent


@pytest.mark.parametrize(
    "wrong",
    [
        answer(usage={"completion_tokens": 3}),
        answer(usage=None),
        answer(usage={}),
        answer(choices=[]),
        answer(choices=["text"]),
        answer(choices=[{"text": None}]),
        {"error": {"message": "model not found"}},
        ["choices"],
        b"<html>",
        b"",
    ],
)
def test_an_answer_that_is_no_completion_of_that_length(answering, wrong):
    url, _asked = answering(200, wrong)
    with pytest.raises(ValueError):  # noqa: PT011 (of json, or of the room)
        health.complete(url, "tiny", "The quick", tokens=4)


def test_an_engine_that_refuses_or_is_gone(answering):
    url, _asked = answering(500, b"")
    with pytest.raises(OSError, match="500"):
        health.complete(url, "tiny", "The quick")
    with pytest.raises(OSError, match="refused"):
        health.complete("http://127.0.0.1:9", "tiny", "The quick")
    url, _asked = answering(0, b"")
    with pytest.raises(OSError, match="does not speak HTTP"):
        health.complete(url, "tiny", "The quick")


def test_the_journal_of_an_engine_that_died_starts_with_its_exception():
    traceback = [f"  frame {number}" for number in range(30)]
    ending = [f"ending {number}" for number in range(200)]
    told = health.telling(["loading", "[PP2] Scheduler hit an exception: Traceback", *traceback, *ending], 60)
    assert told[0] == "[PP2] Scheduler hit an exception: Traceback"
    assert told[1:31] == traceback
    assert told[-11:] == ["…", *ending[-10:]]
    assert len(told) == 61
    assert health.telling(ending, 60) == ending[-60:]
    assert health.telling(["x hit an exception", "end"], 60) == ["x hit an exception", "end"]
