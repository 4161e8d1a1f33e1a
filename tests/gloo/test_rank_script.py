# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The rank script of role nccl_proof by the PyTorch of an installed release, over gloo.

``RELEASE`` names its folder; part ``demo`` of script/test gives that of the demo's node.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import proving, ranks

RELEASE = Path(os.environ["RELEASE"])
RANK_SCRIPT = (Path(__file__).parents[2] / "roles/nccl_proof/files/run_collectives.py").read_text(encoding="utf-8")


def over_gloo(tmp_path: Path, script: str) -> ranks.Ranks:
    """Two ranks by the release; it loads where the stand-in for a driver is."""
    stubs = os.pathsep.join(map(str, RELEASE.parents[1].glob("cpu_engine/*/lib")))
    environment = {"LD_LIBRARY_PATH": stubs, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    (tmp_path / "stores").mkdir()
    (tmp_path / "rank.py").write_text(script)
    command = [str(RELEASE / "bin" / "python"), str(tmp_path / "rank.py"), "gloo"]
    return ranks.Ranks(command, 2, {**os.environ, **environment}, tmp_path)


def test_a_release_proves_two_ranks_over_gloo_and_ends_a_stopped_one(tmp_path: Path) -> None:
    with over_gloo(tmp_path, RANK_SCRIPT) as started:
        prover = proving.Prover(started, tmp_path / "stores", [65536, 1 << 20], 3, 20.0, proving.Clock(100))
        runs = prover.prove()
        assert [(run.collective, run.outcome) for run in runs] == [("all_reduce", "passed"), ("send_recv", "passed")]
        assert all(len(run.seconds) == 3 and run.bandwidth > 1e6 for run in runs)
        assert prover.started["torch"].startswith("2.")
        prover.step = 2.0
        stopper = threading.Timer(0.5, lambda: os.kill(started.pids[1], signal.SIGSTOP))
        stopper.start()
        pids = dict(started.pids)
        while not any(run.outcome == "hung" for run in prover.runs):
            prover._round([(0, 1)])
        assert prover.runs[-1].states[1] == "T"
    assert [ranks.state_of(pid) for pid in pids.values()] == ["", ""]


@pytest.mark.parametrize("collective", ["all_reduce", "send_recv"])
def test_the_rank_script_notices_what_arrives_changed(tmp_path: Path, collective: str) -> None:
    """One of two ranks sends something else than it should."""
    lying = RANK_SCRIPT.replace("+ 7 * rank)", "+ 7 * rank + (NUMBER == 1))")
    assert lying != RANK_SCRIPT
    with over_gloo(tmp_path, lying) as started:
        prover = proving.Prover(started, tmp_path / "stores", [4096], 1, 20.0, proving.Clock(100))
        prover._begin(range(2))
        groups = prover._all([(0, 1)], "join", {"do": "join"}, {(0, 1): tmp_path / "stores" / "meeting"})
        assert prover._all(groups, collective, {"do": "check", "collective": collective, "size": 4096}) == []
        assert prover.runs[-1].outcome == "wrong"
        assert prover.runs[-1].wrong >= 1024
