# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plays that ansible-playbook runs on the controller, for hosts that cannot be reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# How long an example takes says something of the machine only.
hypothesis.settings.register_profile("series", deadline=None)
hypothesis.settings.load_profile("series")

ROOT = Path(__file__).parents[2]
Results = list[tuple[str, str, str, dict[str, Any]]]

CALLBACK = """
import json, os
from ansible.plugins.callback import CallbackBase

class CallbackModule(CallbackBase):
    CALLBACK_NAME = "keep"
    CALLBACK_NEEDS_ENABLED = True

    def keep(self, outcome, result):
        with open(os.environ["KEPT"], "a") as kept:
            kept.write(json.dumps([result.task.name, outcome, result.host.name, result.result], default=str) + chr(10))

    def v2_runner_on_ok(self, result):
        self.keep("ok", result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self.keep("failed", result)

    def v2_runner_on_unreachable(self, result):
        self.keep("unreachable", result)
"""


@pytest.fixture
def playbook(tmp_path: Path) -> Callable[..., Results]:
    """Run a playbook: task, outcome, host and result of each task. A call of ssh leaves the file ``connected``."""

    def run(path: Path, inventory: Path, *arguments: str) -> Results:
        ssh = tmp_path / "ssh"
        ssh.write_text(f"#!/bin/sh\ntouch {tmp_path}/connected\nexit 255\n")
        ssh.chmod(0o755)
        (tmp_path / "keep.py").write_text(CALLBACK)
        environment = {
            **os.environ,
            "ANSIBLE_CALLBACKS_ENABLED": "keep",
            "ANSIBLE_CALLBACK_PLUGINS": str(tmp_path),
            "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local"),
            "ANSIBLE_SSH_EXECUTABLE": str(ssh),
            "KEPT": str(tmp_path / "kept"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        command = ["ansible-playbook", "-i", str(inventory), str(path), *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert (tmp_path / "kept").exists(), done.stdout + done.stderr
        # As Ansible tells that it took a patch beside hosts.json for hosts.
        assert "[WARNING]: Skipping" not in done.stdout + done.stderr
        return [tuple(json.loads(line)) for line in (tmp_path / "kept").read_text().splitlines()]

    return run


@pytest.fixture
def play(tmp_path: Path, playbook: Callable[..., Results]) -> Callable[..., dict[str, tuple[str, dict[str, Any]]]]:
    """Run one task: host name to outcome and result."""

    def run(task: dict[str, Any], hosts: dict[str, Any], *arguments: str) -> dict[str, tuple[str, dict[str, Any]]]:
        nodes = {name: {"ansible_host": "192.0.2.1", **variables} for name, variables in hosts.items()}
        inventory = tmp_path / "inventory" / "hosts.json"
        inventory.parent.mkdir(exist_ok=True)
        inventory.write_text(json.dumps({"all": {"hosts": nodes}}))
        tasks = [{"name": "Judge", **task}]
        (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
        results = playbook(tmp_path / "play.yml", inventory.parent, *arguments)
        return {host: (outcome, result) for _task, outcome, host, result in results}

    return run
