# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The program that a unit's start is refused by: C21, orphans on the GPUs and a port that is taken."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "roles/sglang_server/files/check-free"
FREE = "http://127.0.0.1:9"
Check = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Run it without its patience, with an nvidia-smi that is this script, or none."""

    def run(
        url: str = FREE, script: str | None = None, patience: int = 0, answer: int = 30, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        text = PROGRAM.read_text(encoding="utf-8").replace("PATIENCE = 15", f"PATIENCE = {patience}")
        text = text.replace("ANSWER = 60", f"ANSWER = {answer}")
        (tmp_path / "check-free").write_text(text)
        (tmp_path / "bin").mkdir(exist_ok=True)
        if script is not None:
            (tmp_path / "bin/nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / "bin/nvidia-smi").chmod(0o755)
        argv = [sys.executable, str(tmp_path / "check-free"), url]
        environment = {"PATH": f"{tmp_path}/bin"} | environment
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=90)

    return run


def report(processes: Sequence[tuple[int, int, str]], count: int = 8, mig: str = "N/A") -> str:
    """A script that prints what ``nvidia-smi -q -x`` does: processes are GPU, pid and type."""
    gpus = "".join(
        f"<gpu><uuid>GPU-{index}abc</uuid><mig_mode><current_mig>{mig}</current_mig></mig_mode><processes>"
        + "".join(
            f"<process_info><pid>{pid}</pid><type>{kind}</type><process_name>python</process_name>"
            "<used_memory>90112 MiB</used_memory></process_info>"
            for gpu, pid, kind in processes
            if gpu == index
        )
        + "</processes></gpu>"
        for index in range(count)
    )
    # The path is set to the folder of this script alone.
    return f"/bin/cat <<'END'\n<nvidia_smi_log>{gpus}</nvidia_smi_log>\nEND"


ORPHANS = [(index, 41000 + index, "C") for index in range(8)]


def pids(done: subprocess.CompletedProcess[str]) -> list[int]:
    return [int(pid) for pid in re.findall(r"process (\d+)", done.stdout)]


def test_orphans_refuse_the_start(check: Check) -> None:
    done = check(script=report(ORPHANS))
    assert done.returncode == 1
    assert pids(done) == [41000 + index for index in range(8)]
    assert "GPU 3: process 41003 (python) holds 90112 MiB, unit none that is known here" in done.stdout
    assert "Stop them" in done.stderr


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,1", [41000, 41001]),
        ("7", [41007]),
        (" 2 , 3", [41002, 41003]),
        ("GPU-5abc", [41005]),
        ("GPU-5,6", [41005, 41006]),
        ("1,-1,2", [41001]),
        ("", []),
        ("-1", []),
        ("8", []),
        ("MIG-0abc", []),
    ],
)
def test_only_the_instance_s_own_gpus_count(check: Check, visible: str, expected: list[int]) -> None:
    done = check(script=report(ORPHANS), CUDA_VISIBLE_DEVICES=visible)
    assert (done.returncode, pids(done)) == (int(bool(expected)), expected)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (report([]), []),
        (report([(0, 1, "G")]), []),
        (report([(0, 1, "C+G"), (0, 2, "M+C")]), [1, 2]),
        (report(ORPHANS, mig="Enabled"), []),
        (report([(0, os.getpid(), "C")]), []),  # the same control group, as what is left of the unit itself
    ],
    ids=["idle", "graphics", "kinds", "divided", "own"],
)
def test_what_counts_as_another(check: Check, script: str, expected: list[int]) -> None:
    done = check(script=script)
    assert (done.returncode, pids(done)) == (int(bool(expected)), expected)


@pytest.mark.parametrize("script", [None, "echo 'No devices were found'; exit 6", "echo not XML"])
def test_without_an_answer_the_start_goes_on(check: Check, script: str | None) -> None:
    done = check(script=script)
    assert done.returncode == 0
    assert bool(done.stdout) is (script is not None)


def test_a_driver_that_hangs_ends_the_start(check: Check) -> None:
    began = time.monotonic()
    done = check(script="trap '' TERM; exec /bin/sleep 30", answer=1)
    assert done.returncode == 1
    assert "the driver hangs" in done.stdout
    assert time.monotonic() - began < 25


@pytest.fixture(params=["127.0.0.1", "0.0.0.0", "::1"])  # noqa: S104
def listening(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an address on which somebody listens already."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        server = socket.create_server((request.param, 0), family=family)
    except OSError:
        pytest.skip("no such address here")
    host = "[::1]" if family is socket.AF_INET6 else "127.0.0.1"
    with server:
        yield f"http://{host}:{server.getsockname()[1]}"


def test_a_port_that_is_taken_refuses_the_start(check: Check, listening: str) -> None:
    done = check(listening)
    assert done.returncode == 1
    address = listening.removeprefix("http://").replace("[", "").replace("]", "")
    assert f"{address} cannot be listened on: Address already in use, by a process of user " in done.stdout


def test_a_port_that_was_just_left_is_free(check: Check) -> None:
    """A connection that the former engine closed holds its port for a minute."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _address = server.accept()
            accepted.close()
            client.recv(1)
    assert check(f"http://127.0.0.1:{port}").returncode == 0


def test_what_is_ending_is_waited_for(check: Check, tmp_path: Path) -> None:
    script = f"[ -e {tmp_path}/seen ] && {{ {report([])}\nexit\n}}\n: > {tmp_path}/seen\n{report(ORPHANS)}"
    done = check(script=script, patience=10)
    assert (done.returncode, done.stdout) == (0, "")
