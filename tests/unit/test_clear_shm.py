# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The program that a unit's end clears /dev/shm with: C19, what killed ranks left there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_server_unit import service

PROGRAM = Path(__file__).resolve().parents[2] / "roles/sglang_server/files/clear-shm"
SERVICE, ALICE = 4321, 4322  # acting as them needs root, as all of script/test does

# A process of the service's user. pytest's folders are closed to others, so it enters by a folder that is open already.
# Whoever changes its user is closed to its own kind until prctl(PR_SET_DUMPABLE) or an exec, which a unit's is.
AS_SERVICE = (
    "import os, sys, ctypes; os.fchdir({folder}); os.setgid({user}); os.setuid({user}); ctypes.CDLL(None).prctl(4, 1)"
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    tmp_path.chmod(0o777)
    opened = os.open(tmp_path, os.O_RDONLY)
    yield opened
    os.close(opened)


@pytest.fixture
def segment(tmp_path: Path) -> Callable[..., None]:
    """Make what NCCL makes by mkstemp(3)."""

    def make(name: str, mode: int = 0o600, user: int = SERVICE) -> None:
        path = tmp_path / name
        path.write_bytes(b"\0" * 4096)
        path.chmod(mode)
        os.chown(path, user, -1)

    return make


@pytest.fixture
def holder(folder: int) -> Iterator[Callable[[str, str], None]]:
    """Start a process that has a file open, or mapped and closed again, as NCCL does."""
    started = []

    def start(name: str, how: str) -> None:
        # Python's own mmap keeps a descriptor.
        then = "ctypes.CDLL(None).mmap(None, 4096, 1, 1, f.fileno(), 0); f.close()" if how == "mapped" else "pass"
        code = f"{AS_SERVICE.format(folder=folder, user=SERVICE)}; f = open({name!r}, 'r+b'); {then}; print(flush=True)"
        argv = [sys.executable, "-c", f"{code}; input()"]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[folder])
        started.append(process)
        assert process.stdout
        process.stdout.readline()

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def clear(folder: int) -> Callable[[], subprocess.CompletedProcess[str]]:
    """Run the program as the service's user, to whom other users' processes are closed."""

    def run() -> subprocess.CompletedProcess[str]:
        code = f"{AS_SERVICE.format(folder=folder, user=SERVICE)}; sys.argv = ['clear-shm', '.']"
        argv = [sys.executable, "-c", f"{code}; exec({PROGRAM.read_text(encoding='utf-8')!r})"]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, pass_fds=[folder])

    return run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_only_what_no_process_uses_is_removed(
    segment: Callable[..., None],
    holder: Callable[[str, str], None],
    clear: Callable[[], subprocess.CompletedProcess[str]],
    tmp_path: Path,
    how: str,
) -> None:
    segment("nccl-AbC")
    segment("nccl-XyZ")
    holder("nccl-XyZ", how)
    done = clear()
    assert (done.returncode, done.stderr) == (0, "")
    assert "nccl-AbC" in done.stdout
    assert names(tmp_path) == ["nccl-XyZ"]


def test_what_is_not_nccl_s_or_may_be_open_to_others_stays(
    segment: Callable[..., None], clear: Callable[[], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    for name, mode in (("psm_0a1b", 0o600), ("sem.nccl-1", 0o600), ("nccl-shared", 0o660)):
        segment(name, mode)
    (tmp_path / "nccl-folder").mkdir()
    (tmp_path / "nccl-link").symlink_to("psm_0a1b")
    assert clear().returncode == 0
    assert names(tmp_path) == ["nccl-folder", "nccl-link", "nccl-shared", "psm_0a1b", "sem.nccl-1"]


def test_another_user_s_stays(
    segment: Callable[..., None], clear: Callable[[], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    segment("nccl-AbC")
    segment("nccl-alice", user=ALICE)
    segment("nccl-root", user=0)
    done = clear()
    assert (done.returncode, done.stderr) == (0, "")
    assert names(tmp_path) == ["nccl-alice", "nccl-root"]


def test_the_unit_clears_after_every_end_and_fails_by_it_never() -> None:
    found = service()
    assert found["ExecStopPost"] == ["-/opt/sglang/releases/r/bin/python /opt/sglang/bin/clear-shm /dev/shm"]
    # systemd.exec(5): strict leaves /dev writable.
    assert found["ProtectSystem"] == ["strict"]
