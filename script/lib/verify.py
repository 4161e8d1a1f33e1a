# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check a cluster: ``script/verify INVENTORY``; whether its nodes are fit: ``script/verify INVENTORY --preflight``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nodes
from project import environment

STATUS = {True: 0, False: 1, None: 2}

Report = dict[str, Any]
"""``ok``, null for unknown; ``failures``: findings, each with its ``host``; ``hosts`` by name, those that could not be
judged with ``why``."""


def arguments(given: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Ours, and those that ansible-playbook gets. Bad ones end the process with status 2."""
    parser = argparse.ArgumentParser(
        prog="script/verify",
        description="Check a cluster with the testinfra suite, over the inventory's own connections. Changes nothing.",
        epilog="What is not known here goes to ansible-playbook, --limit HOST for example. "
        "Exit status: 0 all is well, 1 something is not, 2 it could not be told (a node that cannot be reached).",
        allow_abbrev=False,
    )
    parser.add_argument("inventory", help="folder or file; inventories/ has examples")
    parser.add_argument("--preflight", action="store_true", help="judge settings and nodes instead, as before a change")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on standard output")
    ours, others = parser.parse_known_args(given)
    if not Path(ours.inventory).exists():
        parser.error(f"{ours.inventory} does not exist")
    return ours, others


def main(given: list[str]) -> int:
    """Run the playbook, tell what it found, and give the exit status."""
    ours, others = arguments(given)
    playbook = "playbooks/preflight.yml" if ours.preflight else "playbooks/verify.yml"
    # Beside preflight_report and verify_report, which are the user's.
    variable = "__preflight_copies" if ours.preflight else "__verify_copies"
    with tempfile.TemporaryDirectory() as folder, _said_aside(ours.json):
        reports = Path(folder)
        extra = [*others, f"--extra-vars={json.dumps({variable: folder})}"]
        ended = ""
        try:
            nodes.playbook(environment("controller"), Path(ours.inventory).resolve(), playbook, *extra)
        except SystemExit as failure:
            ended = str(failure)
        report = judged(reports) if ours.preflight else verified(reports)
    if ended and report["ok"]:
        report["ok"] = None
    if ours.json:
        print(json.dumps(report, indent=2))
    else:
        for line in said(report, ended):
            print(line, file=sys.stderr)
    return STATUS[report["ok"]]


def said(report: Report, ended: str) -> list[str]:
    """What the playbook's own output lacks: of hosts that were not judged, why, and what was found nevertheless."""
    lines = []
    for name, host in report["hosts"].items():
        if host.get("why"):
            lines += [
                f"{name}: {found['severity']}: {found['id']}: {found['seen']}. {found['remedy']}."
                for found in host.get("findings", [])
                if found["severity"] != "error"
            ]
            lines.append(f"{name} was not judged: {host['why']}")
    if ended:
        lines.append(ended)
    if report["ok"] is not True:
        told = "something is not as it should be" if report["ok"] is False else "it could not be told"
        lines.append(f"script/verify ends with status {STATUS[report['ok']]}: {told}")
    return lines


def judged(folder: Path) -> Report:
    """What preflight found, from its reports. ``ok`` is null where a node could not be judged and no other is unfit."""
    hosts = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    failures = [{"host": name, **failure} for name, host in hosts.items() for failure in host["failures"]]
    known = bool(hosts) and all(host["judged"] == "node" for host in hosts.values())
    return {"ok": False if failures else True if known else None, "failures": failures, "hosts": hosts}


def verified(folder: Path) -> Report:
    """What the suite found, from pytest's JUnit XML. ``ok`` is null where it told nothing."""
    path = folder / "junit.xml"
    tests = list(ET.parse(path).getroot().iter("testcase")) if path.exists() else []  # noqa: S314 # pytest's own
    failures = []
    hosts: dict[str, dict[str, Any]] = {}
    for test in tests:
        name, _, where = test.get("name", "").partition("[")
        host = where.rstrip("]").removeprefix("ansible://")
        wrong = next((told for told in test if told.tag in ("failure", "error")), None)
        counts = hosts.setdefault(host, {"passed": 0, "failed": 0})
        counts["passed" if wrong is None else "failed"] += 1
        if wrong is not None:
            failures.append(
                {
                    "host": host,
                    "id": f"verify.{name.removeprefix('test_')}",
                    "severity": "error",
                    "seen": (wrong.get("message") or "it failed").splitlines()[0],
                    "remedy": f"journalctl --unit 'sglang-*' on {host}; then site.yml again",
                    "source": f"{test.get('classname', '').replace('.', '/')}.py",
                }
            )
    asked, reached = (_names(folder / f"{which}.json") for which in ("asked", "reached"))
    for host in asked:
        why = "the suite did not come to it" if host in reached else "the node could not be reached"
        hosts.setdefault(host, {"ok": None, "why": why})
    return {"ok": not failures if tests else None, "failures": failures, "hosts": hosts}


def _names(path: Path) -> list[str]:
    return list(json.loads(path.read_text())) if path.exists() else []


@contextlib.contextmanager
def _said_aside(aside: bool) -> Iterator[None]:
    """What the tools print goes to standard error, where standard output is to be JSON only."""
    if not aside:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
