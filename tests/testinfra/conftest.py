# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The suite that judges live nodes: for molecule's verify and for playbooks/verify.yml alike.

What to expect is read from the node's own plan and manifests, which the roles wrote; nothing of them is repeated here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

FACTS = pytest.StashKey[list[tuple[str, str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FACTS] = []


@pytest.fixture
def fact(request: pytest.FixtureRequest, host: Any) -> Any:
    """Note a verified fact for the table at the end: ``fact("listens on", "127.0.0.1:30000")``."""

    def note(name: str, value: object) -> None:
        request.config.stash[FACTS].append((host.backend.hostname, name, str(value)))

    return note


@pytest.fixture(scope="module")
def plan(host: Any) -> dict[str, Any]:
    """The plan of the node's instance."""
    folders = host.run("ls -d /etc/sglang/*/plan.json").stdout.split()
    assert len(folders) == 1, f"one instance expected in /etc/sglang, found {folders or 'none'}"
    content: dict[str, Any] = json.loads(host.file(folders[0]).content_string)
    return content


@pytest.fixture(scope="module")
def release(host: Any, plan: dict[str, Any]) -> dict[str, Any]:
    """The manifest of the instance's release."""
    content: dict[str, Any] = json.loads(host.file(f"{plan['release_path']}/manifest.json").content_string)
    return content


@pytest.fixture(scope="module")
def toolkit(host: Any, plan: dict[str, Any]) -> dict[str, Any]:
    """The manifest of the instance's CUDA toolkit, with the folder that it stands in, whoever installed the toolkit."""
    own = plan["cuda_home"].removesuffix("/nvidia/cu13")
    toolkits = Path(plan["bin_path"]).parent / "toolkits"
    folders = [own] if own != plan["cuda_home"] else host.run(f"ls -d {toolkits}/*").stdout.split()
    for folder in folders:
        manifest = host.file(f"{folder}/manifest.json")
        if manifest.exists and (content := json.loads(manifest.content_string))["home"] == plan["cuda_home"]:
            return {"path": folder, **content}
    return pytest.fail(f"no manifest tells of {plan['cuda_home']}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Show the unit's state and journal with a failure, once a node."""
    outcome = yield
    report = outcome.get_result()
    funcargs = getattr(item, "funcargs", {})
    if report.when == "call" and report.failed and "host" in funcargs and "plan" in funcargs:
        unit = f"sglang-{funcargs['plan']['name']}.service"
        shown = funcargs["host"].run(f"systemctl status --no-pager --lines=15 --full {unit}").stdout
        report.sections.append((unit, shown))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run in which no node was judged is a failure, not a success."""
    if exitstatus == pytest.ExitCode.OK and not session.config.stash[FACTS]:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    rows = config.stash[FACTS]
    if not rows:
        return
    terminalreporter.section("verified facts")
    width = max(len(name) for _node, name, _value in rows)
    lines = [f"{node}  {name:<{width}}  {value}" for node, name, value in rows]
    for line in lines:
        terminalreporter.write_line(line)
    if path := os.environ.get("VERIFIED_FACTS"):  # for script/demo, whose last words they are
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
