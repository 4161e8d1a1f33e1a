# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tools that answer, fail and hang; files that are not there."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import probes


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the program ``tool`` is to be written; it may run for a second."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(probes, "LIMIT", 0.5)
    monkeypatch.setattr(probes, "GRACE", 0.3)
    path = tmp_path / "tool"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_tool_is_asked_in_the_language_of_its_parsers(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    tool.write_text('#!/bin/sh\necho "$1 $LC_ALL $LANGUAGE"\necho a warning >&2\nprintf "\\377"\n')
    assert probes.ask("tool", "-q") == ("-q C C\n\N{REPLACEMENT CHARACTER}", "")


def test_a_tool_that_fails_says_why(tool: Path) -> None:
    tool.write_text("#!/bin/sh\necho Failed to initialize NVML\necho '  version: 580.105' >&2\nexit 18\n")
    assert probes.ask("tool", "-q", "-x") == (
        "",
        "tool -q -x ended with status 18: Failed to initialize NVML version: 580.105",
    )


def test_a_tool_that_is_not_there(tool: Path) -> None:
    with pytest.raises(FileNotFoundError):
        probes.ask("absent-tool")
    with pytest.raises(FileNotFoundError):
        probes.ask(f"{tool}-absent")


def test_a_tool_of_another_machine(tool: Path) -> None:
    tool.write_bytes(b"\x7fELF of another architecture")
    assert probes.ask(str(tool), "-x") == ("", "tool -x could not be started: Exec format error")


@pytest.mark.parametrize(
    "script",
    [
        "exec sleep 30",
        "trap '' TERM; while :; do sleep 0.1; done",
        "sleep 30 & echo $! >child; wait",  # what it started holds its output open
    ],
)
def test_a_tool_that_hangs_is_ended_with_all_that_it_started(
    tool: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tool.parent)
    tool.write_text(f"#!/bin/sh\necho $$ >tool.pid\n{script}\n")
    start = time.monotonic()
    assert probes.ask("tool", "-q") == ("", "tool -q did not answer within 0.5 s")
    assert time.monotonic() - start < 5
    for name in ("tool.pid", "child"):
        path = tool.parent / name
        if path.exists():
            assert not _runs(int(path.read_text()))


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_tool_that_cannot_be_killed_is_left_behind(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(probes.os, "killpg", lambda group, number: sent.append((group, number)))
    tool.write_text("#!/bin/sh\nexec sleep 4\n")
    start = time.monotonic()
    assert probes.ask("tool") == ("", "tool did not answer within 0.5 s")
    assert time.monotonic() - start < 3
    assert [number for _group, number in sent] == [15, 9]
    monkeypatch.undo()
    subprocess.run(["/bin/kill", "-9", str(sent[0][0])], check=True)


def test_root_folders_are_looked_through(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probes.find("sh") in ("/usr/bin/sh", "/bin/sh")


def test_files_that_cannot_be_read_are_empty(tmp_path: Path) -> None:
    assert (probes.text(tmp_path), probes.word(tmp_path / "a"), probes.number(tmp_path / "a")) == ("", "", None)
    assert probes.entries(tmp_path / "a") == list(probes.stanzas(tmp_path / "a")) == []
    (tmp_path / "a").write_bytes(b"\n")
    (tmp_path / "b").write_text(" 0x10\nmore\n")
    assert (probes.word(tmp_path / "a"), probes.number(tmp_path / "a"), probes.number(tmp_path / "b")) == ("", None, 16)
    assert (probes.text(tmp_path / "b", 3), probes.entries(tmp_path)) == (" 0x", ["a", "b"])


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/usr/local/cuda", "/usr/local/cuda-13.0"),
        ("/usr/local/cuda/lib64/../bin", "/usr/local/cuda-13.0/targets/bin"),
        ("/nowhere/at/all", "/nowhere/at/all"),
        ("/loop/in", "/loop/in"),
    ],
)
def test_links_lead_where_the_node_has_them(tmp_path: Path, path: str, target: str) -> None:
    (tmp_path / "usr/local/cuda-13.0/targets/lib").mkdir(parents=True)
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    (tmp_path / "usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    (tmp_path / "etc/alternatives/cuda").symlink_to("../../usr/local/cuda-13.0")
    (tmp_path / "usr/local/cuda-13.0/lib64").symlink_to("targets/lib")
    (tmp_path / "loop").symlink_to("loop")
    assert probes.resolve(path, tmp_path) == target


def test_stanzas_of_dpkg(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text(
        "Package: a\nDescription: one\n more: here\nVersion: 1:2\nConffiles:\n /etc/a 12\n\nPackage: b\nCut: sho"
    )
    assert list(probes.stanzas(status)) == [
        {"Package": "a", "Description": "one", "Version": "1:2"},
        {"Package": "b", "Cut": "sho"},
    ]


def test_a_tool_is_given_no_input(tool: Path) -> None:
    tool.write_text("#!/bin/sh\necho $HOME; cat\n")
    assert probes.ask("tool") == (f"{os.environ.get('HOME', '')}\n", "")
