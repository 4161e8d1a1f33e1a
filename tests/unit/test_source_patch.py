# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module source_patch, run for real: most tests call its main, one goes the whole way through ansible."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.sglang.plugins.modules import source_patch

CHECKOUT = Path(__file__).parents[2]
ORIGINAL, PATCHED = b"LIMIT = 0\n", b"LIMIT = 16\n"
PROBE = """
import runpy, sys
assert sys.argv[2] == "1.1"
limit = runpy.run_path(sys.argv[1])["LIMIT"]
sys.exit(0 if limit == 16 else f"LIMIT is {limit}")
"""
Run = Callable[..., dict[str, Any]]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def arguments(site_packages: Path, **changes: object) -> dict[str, object]:
    definition = {
        "id": "raise-limit",
        "summary": "Raise the limit",
        "distribution": "example",
        "file": "example/limits.py",
        "fixed_in": "1.2",
        "releases": {"1.1": {"before": sha256(ORIGINAL), "after": sha256(PATCHED)}},
        "edits": [{"old": "= 0", "new": "= 16"}],
        "probe": PROBE,
    }
    given = {"definition": definition, "site_packages": str(site_packages), "release": "1.1", "python": sys.executable}
    return given | changes


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    path = tmp_path / "example" / "limits.py"
    path.parent.mkdir()
    path.write_bytes(ORIGINAL)
    return path


@pytest.fixture
def run(installed: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(check: bool = False, diff: bool = False, **changes: object) -> dict[str, Any]:
        given = arguments(installed.parents[1], **changes)
        special = {"_ansible_check_mode": check, "_ansible_diff": diff}
        with patch_module_args(given | special), pytest.raises(SystemExit):
            source_patch.main()
        return json.loads(capsys.readouterr().out)

    return call


def test_applies_once_and_gives_the_original_back(run: Run, installed: Path) -> None:
    first = run()
    assert (first["changed"], first["outcome"], first["sha256"]) == (True, "applied", sha256(PATCHED))
    assert first["probe"]["rc"] == 0
    assert first["file"] == str(installed)
    assert installed.read_bytes() == PATCHED
    again = run()
    assert (again["changed"], again["outcome"], again["probe"]["rc"]) == (False, "already", 0)
    back = run(state="absent")
    assert (back["changed"], back["outcome"], back["sha256"]) == (True, "restored", sha256(ORIGINAL))
    assert "probe" not in back
    assert installed.read_bytes() == ORIGINAL
    assert run(state="absent")["changed"] is False


def test_check_mode_foretells_and_writes_nothing(run: Run, installed: Path) -> None:
    result = run(check=True, diff=True)
    assert (result["changed"], result["outcome"], result["sha256"]) == (True, "applied", sha256(PATCHED))
    assert "probe" not in result
    assert result["diff"]["before"].encode() == ORIGINAL
    assert result["diff"]["after"].encode() == PATCHED
    assert result["diff"]["after_header"] == str(installed)
    assert installed.read_bytes() == ORIGINAL


def test_diff_is_returned_only_when_asked_for(run: Run) -> None:
    assert "diff" not in run(check=True)


def test_upstream_fix_needs_nothing(run: Run, installed: Path) -> None:
    result = run(release="1.2")
    assert (result["changed"], result["outcome"]) == (False, "not_needed")
    assert [finding["id"] for finding in result["findings"]] == ["patch.not_needed"]
    assert installed.read_bytes() == ORIGINAL


@pytest.mark.parametrize("check", [False, True])
def test_conflict_fails_with_the_finding(run: Run, installed: Path, check: bool) -> None:
    installed.write_bytes(b"LIMIT = 8\n")
    result = run(check=check)
    assert (result["failed"], result["changed"], result["outcome"]) == (True, False, "conflict")
    assert result["findings"][0]["id"] == "patch.file_changed"
    assert sha256(b"LIMIT = 8\n") in result["msg"]
    assert installed.read_bytes() == b"LIMIT = 8\n"


def test_conflict_shows_the_difference_from_the_original_that_the_cache_has(run: Run, installed: Path) -> None:
    cached = installed.parents[1] / "cache/archive-v0/Ab-1/example/limits.py"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(ORIGINAL)
    installed.write_bytes(b"LIMIT = 8\n")
    result = run(cache_path=str(installed.parents[1] / "cache"))
    assert result["failed"] is True
    assert "-LIMIT = 0\n+LIMIT = 8\n" in result["findings"][0]["seen"]
    assert "-LIMIT = 0\n+LIMIT = 8\n" in result["msg"]


def test_failed_probe_fails_and_the_original_is_back(run: Run, installed: Path) -> None:
    definition = arguments(installed.parents[1])["definition"] | {"probe": "raise SystemExit('not right')"}
    result = run(definition=definition)
    assert (result["failed"], result["changed"], result["outcome"]) == (True, False, "probe_failed")
    assert result["probe"] == {"rc": 1, "output": "not right"}
    assert result["sha256"] == sha256(ORIGINAL)
    assert installed.read_bytes() == ORIGINAL


def test_without_interpreter_no_probe_is_run(run: Run) -> None:
    result = run(python=None)
    assert (result["changed"], "probe" in result) == (True, False)


def test_bad_definition_fails_with_every_fault(run: Run) -> None:
    result = run(definition={"id": "raise-limit", "edits": "LIMIT"})
    assert result["failed"] is True
    assert {finding["id"] for finding in result["findings"]} == {"patch.key_missing", "patch.value_invalid"}
    assert "no probe" in result["msg"]


def test_unreadable_path_fails_with_the_reason(run: Run, installed: Path) -> None:
    installed.unlink()
    installed.mkdir()
    result = run()
    assert result["failed"] is True
    assert "Is a directory" in result["msg"]


def test_the_whole_way_through_ansible(installed: Path) -> None:
    """Also proves that the module carries all that it imports to the node."""
    given = json.dumps(arguments(installed.parents[1]))
    command = [
        sys.executable,
        "-m",
        "ansible",
        "adhoc",
        "--inventory",
        "localhost,",
        "--connection",
        "local",
        "localhost",
    ]
    process = subprocess.run(
        [*command, "--module-name", "inference.sglang.source_patch", "--args", given],
        cwd=CHECKOUT,
        env=os.environ | {"ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    result = json.loads(process.stdout.partition("=>")[2])
    assert (result["changed"], result["outcome"], result["probe"]["rc"]) == (True, "applied", 0)
    assert installed.read_bytes() == PATCHED
