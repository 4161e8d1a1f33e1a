# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Prove that each rule is needed: with any one of them silent, a unit test of its room fails.

usage: python rules_proof.py [ROOM...]

pytest starts and collects once; each rule is made silent in a fork of that process, which runs the room's tests up to
the first that fails. What fails for a rule must pass with all of them.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from project import ROOT

CORE = "ansible_collections.inference.sglang.plugins.module_utils"
WORKERS = os.cpu_count() or 1


@dataclass(frozen=True)
class Room:
    """A module of the core with rules, and the files of its unit tests.

    ``silent``  what a rule gives that finds nothing
    """

    name: str
    tests: tuple[str, ...]
    silent: object = ()

    @property
    def module(self) -> ModuleType:
        return importlib.import_module(f"{CORE}.{self.name}")

    @property
    def rules(self) -> list[str]:
        """Names of its rules: of ``RULES``, or else of what ``judge`` calls."""
        rules = getattr(self.module, "RULES", None)
        if rules is None:
            return [name for name in self.module.judge.__code__.co_names if name.startswith("_")]
        return [rule.__name__ for rule in rules]

    def silence(self, name: str) -> None:
        """Make a rule find nothing in this process, wherever it is called from."""
        meant = getattr(self.module, name)
        silent = _silent(meant, self.silent)
        vars(self.module)[name] = silent
        if hasattr(self.module, "RULES"):
            rules = tuple(silent if rule is meant else rule for rule in self.module.RULES)
            vars(self.module)["RULES"] = rules


ROOMS = (
    Room("launch_rules", ("test_launch_rules.py",), silent=None),
    Room("audit", ("test_audit.py", "test_unit_audit.py")),
    Room("rules", ("test_rules.py",)),
    Room("warmup", ("test_warmup.py",)),
    Room("gpus", ("test_gpus.py",)),
    Room("weights", ("test_weights.py",)),
    Room("collectives", ("test_collectives.py",)),
    Room("fitness", ("test_fitness.py",)),
    Room("apt", ("test_apt.py",)),
    Room("apt_install", ("test_apt_install.py",)),
    Room("drivers", ("test_drivers.py",)),
    Room("toolkit_rules", ("test_toolkit_rules.py",)),
    Room("boot", ("test_boot.py",)),
    Room("node_settings", ("test_node_settings.py",)),
)


@dataclass(frozen=True)
class Proof:
    """The test that fails without a rule; empty where none does."""

    room: str
    rule: str
    test: str


class Prover:
    """Plugin of pytest that runs the tests once for each rule, in the place of once."""

    def __init__(self, rooms: Sequence[Room]) -> None:
        self.rooms = rooms
        self.proofs: list[Proof] = []
        self.broken: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed:
            return None  # files that cannot be collected: pytest tells it
        session.config.pluginmanager.unregister(name="terminalreporter")
        wanted = [(room, rule) for room in self.rooms for rule in room.rules]
        tests = {room.name: [item for item in session.items if item.path.name in room.tests] for room in self.rooms}

        def without(chosen: tuple[Room, str]) -> str:
            room, rule = chosen
            room.silence(rule)
            # Those that are named after the rule are likely to fail.
            return _first_failure(session, sorted(tests[room.name], key=lambda item: rule not in item.nodeid))

        found = _forked(without, wanted)
        self.proofs = [Proof(room.name, rule, test) for (room, rule), test in zip(wanted, found, strict=True)]
        proving = {proof.test for proof in self.proofs}
        items = [item for item in session.items if item.nodeid in proving]
        self.broken = [test for test in _forked(lambda item: _first_failure(session, [item]), items) if test]
        return True


def _silent(rule: Callable[..., Any], finds: object) -> Callable[..., Any]:
    @functools.wraps(rule)
    def silent(*_given: object, **_named: object) -> object:
        return finds

    return silent


def _first_failure(session: pytest.Session, items: Sequence[pytest.Item]) -> str:
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return item.nodeid
    return ""


def _forked(function: Callable[[Any], str], given: Sequence[Any]) -> list[str]:
    """The function's text for each of these, each from a process of its own that is a copy of this one."""
    running = 0
    with tempfile.TemporaryDirectory() as folder:
        for index, one in enumerate(given):
            if running == WORKERS:
                os.wait()
                running -= 1
            if os.fork() == 0:
                try:
                    Path(folder, str(index)).write_text(function(one), encoding="utf-8")
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(0)  # what ends pytest is for the first process alone
            running += 1
        for _ in range(running):
            os.wait()
        return [Path(folder, str(index)).read_text(encoding="utf-8") for index in range(len(given))]


def table(proofs: Sequence[Proof]) -> str:
    """How many rules each room has, and the names of those that no test needs, as a Markdown table."""
    lines = ["| room | rules | without a test that fails |", "| ---- | ----: | ------------------------- |"]
    for room in dict.fromkeys(proof.room for proof in proofs):
        own = [proof for proof in proofs if proof.room == room]
        needless = ", ".join(proof.rule for proof in own if not proof.test)
        lines.append(f"| {room} | {len(own)} | {needless or 'none'} |")
    return "\n".join(lines)


def main(names: Sequence[str]) -> None:
    """Prove the rooms of these names, all without any. Raises SystemExit where a rule is not proven."""
    rooms = [room for room in ROOMS if room.name in names or not names]
    prover = Prover(rooms)
    files = [str(ROOT / "tests" / "unit" / name) for room in rooms for name in room.tests]
    status = pytest.main(["-q", "--capture=no", "-p", "no:cacheprovider", *files], plugins=[prover])
    if status or not prover.proofs:
        raise SystemExit(f"pytest ended with status {status}, {len(prover.proofs)} rules were tried")
    print(table(prover.proofs), flush=True)
    if prover.broken:
        raise SystemExit(f"These fail with all rules, too, and prove nothing: {', '.join(prover.broken)}")
    if needless := [f"{proof.room}.{proof.rule}" for proof in prover.proofs if not proof.test]:
        raise SystemExit(f"No test fails without {', '.join(needless)}")


if __name__ == "__main__":
    main(sys.argv[1:])
