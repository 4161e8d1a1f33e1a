# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The proof for real: processes that hang, die and lie in place of ranks, and PyTorch over Gloo where a release is."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.sglang.plugins.module_utils import proving, ranks
from ansible_collections.inference.sglang.plugins.module_utils.gpus import Process
from ansible_collections.inference.sglang.plugins.module_utils.hardware import GpuState, Hardware
from ansible_collections.inference.sglang.plugins.module_utils.health import UnitState
from ansible_collections.inference.sglang.plugins.modules import nccl_proof

ROOT = Path(__file__).resolve().parents[2]
RANK_SCRIPT = (ROOT / "roles" / "nccl_proof" / "files" / "run_collectives.py").read_text()
USER = getpass.getuser()
Run = Callable[..., dict[str, Any]]

# Answers as run_collectives.py does. FAKE says what is done else, by the ranks of a group (0-1) or by one rank.
FAKE = """
import json, os, signal, sys
number, group, faults = int(sys.argv[2]), "", json.loads(os.environ.get("FAKE", "{}"))
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "join":
        group = asked["store"].rpartition("/")[2].partition("-")[2]
        print(f"[0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {os.environ.get('VIA', 'P2P/CUMEM')}", file=sys.stderr)
    fault = faults.get(f"{asked['do']} {group}") or faults.get(f"{asked['do']} rank {number}")
    if fault == "hang":
        signal.pause()
    if fault == "die":
        sys.exit(7)
    answers = {"start": {"torch": "2.11.0"}, "check": {"wrong": 3 if fault == "lie" else 0}}
    answers["measure"] = {"seconds": [0.001 * (1 + number)] * asked.get("repeats", 0)}
    answer = {"error": "RuntimeError: it is so"} if fault == "refuse" else answers.get(asked["do"], {})
    print("nonsense" if fault == "babble" else json.dumps(answer), flush=True)
"""


def eight(**given: Any) -> Hardware:
    gpus = [GpuState(address=f"0000:0{index}:00.0", index=index, product="NVIDIA L40S", **given) for index in range(8)]
    return Hardware(gpus=tuple(gpus), links={(a, b): "SYS" for a in range(8) for b in range(a + 1, 8)})


def running(token: str) -> list[str]:
    """Processes whose command line has this word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if token.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the module makes its folder, so that it can be seen what it leaves."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(nccl_proof, "TEMPORARY", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "of-root-alone"))
    return folder


@pytest.fixture
def prove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Run the module; its result. A release of which only the versions are there lies in ``release``."""
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "manifest.json").write_text(
        '{"versions": {"torch": "2.11.0", "nvidia-nccl-cu13": "2.28.9"}}'
    )
    before = os.umask(0o077)

    def call(
        hardware: Hardware | None = None,
        *,
        fake: dict[str, str] | None = None,
        environment: dict[str, str] | None = None,
        check: bool = False,
        layout: dict[str, int] | None = None,
        arguments: list[list[str]] | None = None,
        active: str = "inactive",
        **given: object,
    ) -> dict[str, Any]:
        monkeypatch.setattr(nccl_proof.readings, "read", lambda: hardware if hardware else eight())
        monkeypatch.setattr(nccl_proof.health, "unit_state", lambda _name: UnitState(active, "", "", 0, 0, 0))
        plan = {
            "name": "tiny",
            "user": USER,
            "command": [sys.executable],
            "arguments": arguments or [],
            "release_path": str(tmp_path / "release"),
            "environment": {"FAKE": json.dumps(fake or {}), **(environment or {})},
            "layout": layout or {},
        }
        parameters = {
            "plan": plan,
            "records": str(tmp_path / "records"),
            "rank_script": FAKE,
            "step_timeout": 1,
            **given,
        }
        with patch_module_args(parameters | {"_ansible_check_mode": check}), pytest.raises(SystemExit):
            nccl_proof.main()
        return json.loads(capsys.readouterr().out)

    yield call
    os.umask(before)


def ids(result: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in result["findings"]]


def test_every_pair_and_all_are_proven_and_recorded_once(prove: Run, tmp_path: Path, temporary: Path) -> None:
    would = prove(check=True)
    assert (would["changed"], would["ran"]) == (True, True)
    assert not (tmp_path / "records").exists()
    done = prove()
    assert done["changed"]
    assert len(done["groups"]) == 28 + 1
    # The slower of two ranks counts: 256 MiB in 0.008 s.
    assert done["groups"]["0-7"]["send_recv"]["gb_per_second"] == pytest.approx(33.55, abs=0.01)
    assert done["groups"]["0-7"]["transport"] == "P2P/CUMEM"
    record = json.loads(Path(done["record"]).read_text())
    assert record["passed"]
    assert record["identity"]["versions"] == {"nvidia-nccl-cu13": "2.28.9", "torch": "2.11.0"}
    assert Path(done["record"]).stat().st_mode & 0o777 == 0o644
    again = prove(fake={"start rank 0": "die"})
    assert (again["changed"], again["ran"], again["groups"]) == (False, False, done["groups"])
    assert prove(force=True)["changed"]
    assert list(temporary.iterdir()) == []
    assert running(str(temporary)) == []


def test_a_pair_that_hangs_is_named_though_all_complete(prove: Run, temporary: Path) -> None:
    """C18, the fake peer-to-peer test: timeout for 2 ranks, ok for 8, and no longer than the limits."""
    begin = time.monotonic()
    failed = prove(fake={"check 0-1": "hang", "check 2-3": "hang"}, timeout=60)
    assert time.monotonic() - begin < 20
    assert failed["failed"]
    assert "tiny was not touched" in failed["msg"]
    assert "pair 2-3 (SYS)" in failed["msg"]
    assert "though that of all 8 did" in failed["msg"]
    assert ids(failed) == ["collectives.hung"]
    assert failed["groups"]["0-1"]["all_reduce"]["outcome"] == "hung"
    assert failed["groups"]["0-1"]["transport"] == "P2P/CUMEM"
    assert failed["groups"]["0-2"]["all_reduce"]["outcome"] == "passed"
    assert len(failed["groups"]) == 29
    assert "NCCL INFO Channel" in Path(failed["log"]).read_text()
    assert running(str(temporary)) == []
    assert list(temporary.iterdir()) == []
    # A bad record is no reason to leave it at that, and a good one takes the log away.
    mended = prove()
    assert mended["changed"]
    assert not Path(failed["log"]).exists()


@pytest.mark.parametrize(
    ("fake", "finding", "words"),
    [
        ({"check 0-1": "lie"}, "collectives.wrong", "6 wrong elements"),
        ({"join 0-1": "refuse"}, "collectives.failed", "Making the communicator failed: pair 0-1 (SYS): RuntimeError"),
        ({"measure 0-1": "die"}, "collectives.failed", "ended with status 7"),
        ({"leave 0-1": "hang"}, "collectives.hung", "Ending the communicator did not end"),
        ({"measure 0-1": "hang"}, "collectives.hung", "all_reduce did not end within 1 s"),
        ({"check 0-1": "babble"}, "collectives.failed", "nonsense"),
        ({"start rank 1": "die"}, "collectives.start", "GPU 1 did not start: ended with status 7"),
        ({"start rank 1": "refuse"}, "collectives.start", "it is so"),
    ],
)
def test_what_goes_wrong_with_one_pair_fails_the_proof(
    prove: Run, temporary: Path, fake: dict[str, str], finding: str, words: str
) -> None:
    failed = prove(fake=fake, layout={"gpus": 2})
    assert failed["failed"]
    assert ids(failed) == [finding]
    assert words in failed["msg"]
    assert running(str(temporary)) == []


def test_one_rank_that_dies_ends_the_wait_for_its_partner(prove: Run) -> None:
    begin = time.monotonic()
    failed = prove(fake={"check rank 0": "die", "check rank 1": "hang"}, layout={"gpus": 2}, step_timeout=60)
    assert time.monotonic() - begin < 30
    assert "ended with status 7" in failed["msg"]


def test_the_whole_limit_is_kept(prove: Run) -> None:
    begin = time.monotonic()
    hanging = {f"join {a}-{b}": "hang" for a in range(8) for b in range(a + 1, 8)}
    failed = prove(fake=hanging, timeout=4, step_timeout=2)
    assert time.monotonic() - begin < 12
    assert set(ids(failed)) == {"collectives.hung", "collectives.unreached"}


def test_what_the_whole_limit_cuts_short_is_not_called_a_hang(prove: Run) -> None:
    failed = prove(fake={"measure 0-1": "hang"}, timeout=3, step_timeout=600, layout={"gpus": 2})
    assert ids(failed) == ["collectives.unreached"]


def test_gpus_in_use_are_left_alone(prove: Run) -> None:
    busy = eight(processes=(Process(41, "python3", 0, unit="sglang-tiny.service"),))
    left = prove(busy)
    assert (left["changed"], left["ran"], ids(left)) == (False, False, ["collectives.held"])
    assert "sglang-tiny.service" in left["findings"][0]["seen"]
    assert not left.get("failed")


@pytest.mark.parametrize("active", ["activating", "active"])
def test_an_instance_that_starts_is_not_disturbed(prove: Run, active: str) -> None:
    """It holds no GPU yet, or the driver does not tell, and measures how much of their memory is free."""
    left = prove(active=active)
    assert (left["ran"], ids(left)) == (False, ["collectives.held"])
    assert "sglang-tiny.service runs or is about to" in left["findings"][0]["seen"]
    assert prove(Hardware(), active=active, environment={"VIA": ""})["ran"]


def test_an_instance_on_other_gpus_is_in_nobodys_way(prove: Run) -> None:
    own = Process(41, "python3", 0, unit="sglang-tiny.service")
    gpus = [replace(gpu, processes=(own,) if gpu.index == 7 else ()) for gpu in eight().gpus]
    moved = prove(replace(eight(), gpus=tuple(gpus)), active="active", layout={"gpus": 2})
    assert list(moved["groups"]) == ["0-1"]


def test_the_ranks_are_on_the_gpus_that_are_told(prove: Run, tmp_path: Path) -> None:
    """By their numbers in the order of nvidia-smi, which CUDA's own is not."""
    seen = tmp_path / "seen"
    names = ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"]
    told = f"import os; print(*map(os.environ.get, {names}), file=open({str(seen)!r}, 'w'))"
    done = prove(rank_script=told + FAKE, layout={"gpus": 2}, arguments=[["--base-gpu-id", "4"], ["--enable-metrics"]])
    assert list(done["groups"]) == ["4-5"]
    assert seen.read_text() == "PCI_BUS_ID 4,5\n"


def test_gpus_that_are_named_otherwise_are_left_alone(prove: Run) -> None:
    """Nobody could tell whether others hold them."""
    left = prove(environment={"CUDA_VISIBLE_DEVICES": "GPU-8f2f,GPU-11c3"})
    assert (left["ran"], ids(left)) == (False, ["collectives.unnumbered"])


def test_one_gpu_has_nothing_to_prove(prove: Run) -> None:
    alone = prove(layout={"gpus": 1})
    assert (alone["changed"], alone["record"]) == (False, "")


def test_a_node_without_gpus_is_proven_over_gloo_by_two_ranks(prove: Run) -> None:
    done = prove(Hardware(), environment={"VIA": ""})
    assert list(done["groups"]) == ["0-1"]
    assert json.loads(Path(done["record"]).read_text())["identity"]["backend"] == "gloo"


def test_without_a_release_there_is_nothing_to_prove_with(prove: Run, tmp_path: Path) -> None:
    (tmp_path / "release" / "manifest.json").unlink()
    assert "run the sglang role first" in prove()["msg"]
    assert prove(check=True)["ran"]


# nccl-tests.

PERF = """#!/bin/sh
echo "$0 $* on $CUDA_VISIBLE_DEVICES with $LD_LIBRARY_PATH" >> {calls}
echo '0[0] -> 1[1] via P2P/IPC'
case "$CUDA_VISIBLE_DEVICES" in {odd}) {fault} ;; esac
echo '  268435456  67108864  float  sum  -1  5000.0  53.69  53.69  0  5000.0  53.69  53.69  0'
"""


@pytest.fixture
def tests(tmp_path: Path) -> Callable[..., Path]:
    """Programs in place of nccl-tests'; ``fault`` is what they do on the GPUs ``odd``."""
    folder = tmp_path / "nccl-tests"
    folder.mkdir()

    def write(odd: str = "none", fault: str = "") -> Path:
        for name in proving.PROGRAMS.values():
            (folder / name).write_text(PERF.format(calls=tmp_path / "calls", odd=odd, fault=fault))
            (folder / name).chmod(0o755)
        return folder

    return write


def test_nccl_tests_are_used_where_they_are(prove: Run, tests: Callable[..., Path], tmp_path: Path) -> None:
    libraries = tmp_path / "release/lib/python3.11/site-packages/nvidia/nccl/lib"
    libraries.mkdir(parents=True)
    done = prove(nccl_tests=str(tests()), layout={"gpus": 3}, environment={"LD_LIBRARY_PATH": "/opt/lib"})
    assert list(done["groups"]) == ["1-2", "0-2", "0-1", "0-1-2"]
    assert done["groups"]["0-1"]["send_recv"]["gb_per_second"] == 53.69
    assert done["groups"]["0-1"]["transport"] == "P2P/IPC"
    # Three ranks: 4/3 of 53.69.
    assert done["groups"]["0-1-2"]["all_reduce"]["gb_per_second"] == 71.58
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 8
    assert f"-g 3 -b 268435456 -e 268435456 -c 1 on 0,1,2 with {libraries}:/opt/lib" in calls[-1]


@pytest.mark.parametrize(
    ("fault", "finding", "words"),
    [
        ("sleep 600", "collectives.hung", "pair 0-1 (SYS), though that of all 3 did"),
        (
            "echo 'no device' >&2; exit 3",
            "collectives.failed",
            "ended with status 3: 0[0] -> 1[1] via P2P/IPC no device",
        ),
        ("echo ' 1  1  float  sum  -1  5000.0  1  1  9  5000.0  1  1  0'; exit 1", "collectives.wrong", "9 wrong"),
        ("echo ' 1  1  float  sum  -1  5000.0  1  1  0  5000.0  1  1  0'; exit 1", "collectives.failed", "status 1"),
    ],
)
def test_what_nccl_tests_say_is_told(
    prove: Run, tests: Callable[..., Path], fault: str, finding: str, words: str
) -> None:
    failed = prove(nccl_tests=str(tests("0,1", fault)), layout={"gpus": 3})
    assert set(ids(failed)) == {finding}
    assert words in failed["msg"]
    assert running("sleep 600") == []


def test_nccl_tests_keep_the_whole_limit(prove: Run, tests: Callable[..., Path]) -> None:
    begin = time.monotonic()
    failed = prove(nccl_tests=str(tests("*", "sleep 600")), layout={"gpus": 3}, timeout=3, step_timeout=2)
    assert time.monotonic() - begin < 12
    assert set(ids(failed)) == {"collectives.hung", "collectives.unreached"}


def test_a_driver_that_hangs_before_the_first_rank_is_waited_for_no_longer_than_a_step(
    prove: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-modprobe").write_text("#!/bin/sh\nexec sleep 6218\n")
    (tmp_path / "nvidia-modprobe").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    begin = time.monotonic()
    assert prove(layout={"gpus": 2})["ran"]
    assert 1 <= time.monotonic() - begin < 20
    assert running("sleep\0006218") == []


def test_half_of_nccl_tests_is_none(prove: Run, tests: Callable[..., Path]) -> None:
    folder = tests()
    (folder / "sendrecv_perf").unlink()
    assert len(prove(nccl_tests=str(folder))["groups"]) == 29


def test_nccl_tests_that_nobody_named_and_that_do_not_start_are_passed_over(
    prove: Run, tests: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built for an MPI that is not there, they say nothing of the GPUs."""
    folder = tests()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    assert prove(layout={"gpus": 2})["groups"]["0-1"]["transport"] == "P2P/IPC"
    (folder / "sendrecv_perf").write_text("#!/bin/sh\necho libmpi.so.40: cannot open shared object file\nexit 127\n")
    other = prove(layout={"gpus": 2}, force=True)
    assert other["groups"]["0-1"]["transport"] == "P2P/CUMEM"


# Processes and what they leave.


def supervised(tmp_path: Path, script: str, count: int = 2, **environment: str) -> ranks.Ranks:
    (tmp_path / "rank.py").write_text(script)
    command = [sys.executable, str(tmp_path / "rank.py"), "gloo"]
    return ranks.Ranks(command, count, {**os.environ, **environment}, tmp_path)


def test_a_stopped_rank_is_ended_within_the_limit(tmp_path: Path) -> None:
    """Not by a request that it is told to hang at: it is stopped from outside, in the middle."""
    (tmp_path / "stores").mkdir()
    with supervised(tmp_path, FAKE, 3) as started:
        prover = proving.Prover(started, tmp_path / "stores", [4], 1, 1.0, proving.Clock(60))
        prover._begin(range(3))
        pids = dict(started.pids)
        os.kill(pids[1], signal.SIGSTOP)
        begin = time.monotonic()
        prover._round([(0, 1)])
        assert time.monotonic() - begin < 6
        assert [(run.collective, run.outcome) for run in prover.runs] == [("join", "hung")]
        assert prover.runs[0].states[1] == "T"
        assert started.alive == {2}
        prover._round([(1, 2)])
        assert prover.runs[-1].outcome == "passed"
        assert started.restarts == 1
    for pid in [*pids.values(), *started.pids.values()]:
        assert ranks.state_of(pid) in ("", "Z")
    assert started.left == []


def test_ranks_end_with_what_started_them(tmp_path: Path) -> None:
    """A controller whose connection is cut leaves nothing, also of ranks that no longer read their requests."""
    rank = tmp_path / "rank.py"
    rank.write_text(RANK_SCRIPT.partition("import torch")[0] + "\nprint(os.getpid(), file=answers)\nsignal.pause()\n")
    starter = f"import subprocess, sys, time; subprocess.Popen([sys.executable, {str(rank)!r}]); time.sleep(600)"
    read, write = os.pipe()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", starter],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)],
    )
    rank_pid = int(os.read(read, 100))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    until = time.monotonic() + 5
    while ranks.state_of(rank_pid) not in ("", "Z") and time.monotonic() < until:
        time.sleep(0.02)
    assert ranks.state_of(rank_pid) in ("", "Z")


def test_nccl_tests_end_with_what_started_them(tmp_path: Path) -> None:
    command = [*nccl_proof.bound({"user": USER}), "sleep", "6217"]
    starter = f"import subprocess, time; subprocess.Popen({command!r}); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", starter]) as started:
        until(lambda: len(running("sleep\0006217")) == 1)
        started.kill()
    until(lambda: running("sleep\0006217") == [])


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_what_does_not_end_is_left_and_told(prove: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waits in the kernel cannot be made here: it is one whose killing does nothing."""
    spared: list[int] = []
    monkeypatch.setattr(ranks, "MERCY", 0.2)
    monkeypatch.setattr(ranks, "_kill", lambda process: spared.append(process.pid))
    try:
        failed = prove(fake={"check 0-1": "hang"}, layout={"gpus": 3})
    finally:
        for pid in spared:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # those that ended with their input
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    remaining = next(finding for finding in failed["findings"] if finding["id"] == "collectives.remaining")
    assert remaining["severity"] == "error"
    # What it computed on is not tried again.
    assert "collectives.unreached" in ids(failed)


def test_only_new_and_unused_segments_of_the_user_are_swept(tmp_path: Path) -> None:
    for name in ("nccl-before", "nccl-left", "nccl-used", "other"):
        (tmp_path / name).touch()
    proc = tmp_path / "proc"
    (proc / "41").mkdir(parents=True)
    (proc / "41" / "maps").write_text(f"7f00-7f01 rw-s 00000000 00:19 7 {tmp_path}/nccl-used\n")
    assert ranks.sweep(["nccl-before"], os.geteuid() + 1, tmp_path, proc) == []
    assert ranks.sweep(["nccl-before"], os.geteuid(), tmp_path, proc) == ["nccl-left"]
    assert {path.name for path in tmp_path.glob("[no]*")} == {"nccl-before", "nccl-used", "other"}
    assert ranks.sweep(["nccl-before", "nccl-used"], os.geteuid(), tmp_path, proc) == []
