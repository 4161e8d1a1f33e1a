# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Preflight by ansible-playbook of recorded nodes; what script/verify reports of it; the example inventories."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PLAYBOOK = ROOT / "playbooks" / "preflight.yml"
NODES = Path(__file__).parent / "data" / "nodes"
Results = list[tuple[str, str, str, dict[str, Any]]]

BOX = "eight_rtx_pro_6000"
REDIRECTED = "eight_rtx_pro_6000_redirected"


def recorded(folder: Path, **hosts: str) -> Path:
    """A folder of recorded facts: host to a file of ``data/nodes``, or to JSON."""
    folder.mkdir()
    for host, facts in hosts.items():
        text = facts if facts[0] in "{[" else (NODES / f"{facts}.json").read_text()
        (folder / f"{host}.json").write_text(text)
    return folder


def inventory(folder: Path, hosts: Mapping[str, Mapping[str, Any]]) -> Path:
    """Hosts of the settings of ``inventories/pp8-pcie``."""
    shutil.copytree(ROOT / "inventories" / "pp8-pcie" / "group_vars", folder / "group_vars")
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    return folder


def reports(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def found(report: Mapping[str, Any]) -> list[str]:
    return [failure["id"] for failure in report["failures"]]


@pytest.mark.parametrize(
    ("cluster", "facts"),
    [
        ("pp8-pcie", {"gpu1": BOX}),
        ("ep8-pcie", {"gpu1": BOX}),
        ("hgx", {"gpu1": "eight_b200"}),
        ("fleet", {"gpu1": BOX, "gpu2": BOX, "hgx1": "eight_b200"}),
    ],
)
def test_an_example_is_fit_by_recorded_facts(
    playbook: Callable[..., Results], tmp_path: Path, cluster: str, facts: dict[str, str]
) -> None:
    folder = recorded(tmp_path / "facts", **facts)
    extra = ("-e", f"preflight_facts={folder}", "-e", f"preflight_report={tmp_path / 'reports'}")
    results = playbook(PLAYBOOK, ROOT / "inventories" / cluster, "--check", *extra)
    assert not (tmp_path / "connected").exists()
    assert {outcome for _task, outcome, _host, _result in results} == {"ok"}
    assert not any(result.get("changed") for _task, _outcome, _host, result in results)
    written = reports(tmp_path / "reports")
    assert set(written) == set(facts)
    for host, report in written.items():
        assert (report["host"], report["ok"], report["judged"], report["failures"]) == (host, True, "node", [])
        assert {finding["severity"] for finding in report["findings"]} <= {"info", "warning"}
        assert len(report["facts"]["hardware"]["gpus"]) == 8


def test_what_is_wrong_is_told_at_once(playbook: Callable[..., Results], tmp_path: Path) -> None:
    hosts: dict[str, dict[str, Any]] = {
        "redirected": {},
        "fallback": {"sglang_server_p2p_fallback": True},
        # One GPU has nobody to reach.
        "alone": {"sglang_server_gpus": [5], "sglang_server_preset": None},
        "waits": {},
    }
    folder = recorded(
        tmp_path / "facts",
        redirected=REDIRECTED,
        fallback=REDIRECTED,
        alone=REDIRECTED,
        waits="eight_b200_fabric_waits",
    )
    extra = ("-e", f"preflight_facts={folder}", "-e", f"preflight_report={tmp_path / 'reports'}")
    results = playbook(PLAYBOOK, inventory(tmp_path / "inventory", hosts), *extra)
    assert not (tmp_path / "connected").exists()
    told = reports(tmp_path / "reports")
    assert {host: found(report) for host, report in told.items()} == {
        "redirected": ["pcie.iommu", "pcie.acs"],
        "fallback": [],
        "alone": [],
        "waits": ["fabric.state"],
    }
    assert {host for host, report in told.items() if report["ok"]} == {"fallback", "alone"}
    failed = {host: result["msg"] for _task, outcome, host, result in results if outcome == "failed"}
    assert set(failed) == {"redirected", "waits"}
    assert failed["redirected"].startswith("The recorded node is not fit, nothing was changed:\nerror: pcie.iommu: ")
    assert "\nerror: pcie.acs: " in failed["redirected"]


def test_facts_that_are_none_are_refused(playbook: Callable[..., Results], tmp_path: Path) -> None:
    texts = {
        "cut": '{"node": {"distribution": "deb',
        "empty": "{}",
        "list": "[1]",
        "unjudged": '{"host": "gpu1", "ok": false, "facts": null}',
    }
    folder = recorded(tmp_path / "facts", **texts)
    hosts: dict[str, dict[str, Any]] = {host: {} for host in texts}
    extra = ("-e", f"preflight_facts={folder}", "-e", f"preflight_report={tmp_path / 'reports'}")
    (tmp_path / "reports").mkdir(mode=0o700)
    results = playbook(PLAYBOOK, inventory(tmp_path / "inventory", hosts), *extra)
    assert not (tmp_path / "connected").exists()
    assert (tmp_path / "reports").stat().st_mode & 0o7777 == 0o700, "a folder that is there, as /tmp, is not ours"
    failed = {host: result["msg"] for _task, outcome, host, result in results if outcome == "failed"}
    assert set(failed) == set(hosts)
    for host in texts:
        assert failed[host].startswith("recorded is not what this module returned as facts (")
        assert failed[host].endswith("write it with preflight_report")
    for report in reports(tmp_path / "reports").values():
        assert (report["ok"], report["judged"], report["facts"]) == (False, "settings", None)
        assert report["why"] == "the run ended before the node was judged"


# script/verify INVENTORY --preflight --json


Verify = Callable[..., "subprocess.CompletedProcess[str]"]

JSON = ("--preflight", "--json")

VERIFY = """
import sys
from pathlib import Path
import verify
verify.environment = lambda name: Path(sys.executable).parents[1]
sys.exit(verify.main(sys.argv[1:]))
"""


@pytest.fixture
def verify(tmp_path: Path) -> Verify:
    """script/verify, started in ``tmp_path``, with the Ansible that runs these tests."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", VERIFY, *map(str, arguments)]
        # As a shell in that folder has it.
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "script" / "lib"), "PWD": str(tmp_path)}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    return run


def test_verify_reports_fit_nodes_and_its_report_is_taken_as_facts(
    verify: Verify, playbook: Callable[..., Results], tmp_path: Path
) -> None:
    recorded(tmp_path / "facts", gpu1=BOX)
    cluster = ROOT / "inventories" / "pp8-pcie"
    done = verify(cluster, *JSON, "-e", "preflight_facts=facts", "-e", "preflight_report=mine")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert reports(tmp_path / "mine") == told["hosts"], "the user's folder, where the script was started"
    assert (told["ok"], told["failures"], list(told["hosts"])) == (True, [], ["gpu1"])
    again = recorded(tmp_path / "again", gpu1=json.dumps(told["hosts"]["gpu1"]))
    extra = ("-e", f"preflight_facts={again}", "-e", f"preflight_report={tmp_path / 'reports'}")
    playbook(PLAYBOOK, cluster, *extra)
    assert reports(tmp_path / "reports") == told["hosts"]


def test_verify_reports_what_is_unfit(verify: Verify, tmp_path: Path) -> None:
    hosts: dict[str, dict[str, Any]] = {"good": {}, "bad": {}}
    folder = recorded(tmp_path / "facts", good=BOX, bad=REDIRECTED)
    done = verify(inventory(tmp_path / "inventory", hosts), *JSON, "-e", f"preflight_facts={folder}")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert told["ok"] is False
    assert [(failure["host"], failure["id"]) for failure in told["failures"]] == [
        ("bad", "pcie.iommu"),
        ("bad", "pcie.acs"),
    ]
    assert set(told["failures"][0]) == {"host", "id", "severity", "seen", "remedy", "source"}
    assert told["hosts"]["good"]["ok"]


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """An inventory of one node, whose ssh ends at once, as for a closed port."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexit 255\n")
    ssh.chmod(0o755)
    variables = {"ansible_host": "192.0.2.1", "ansible_ssh_executable": str(ssh)}
    return inventory(tmp_path / "inventory", {"away": variables})


def test_preflight_cannot_tell_of_a_node_that_is_not_reached(verify: Verify, away: Path) -> None:
    done = verify(away, *JSON)
    assert done.returncode == 2, done.stderr
    told = json.loads(done.stdout)
    assert (told["ok"], told["failures"]) == (None, [])
    host = told["hosts"]["away"]
    assert (host["ok"], host["judged"], host["why"]) == (None, "settings", "the node could not be reached")


def test_preflight_shows_what_was_found_of_the_settings_alone(verify: Verify, away: Path) -> None:
    done = verify(away, "--preflight")
    assert done.returncode == 2, done.stdout
    lines = done.stderr.splitlines()
    assert "away was not judged: the node could not be reached" in lines
    assert lines[-1] == "script/verify ends with status 2: it could not be told"
    assert any(line.startswith("away: info: tuning.faster: ") for line in lines), done.stderr


def test_hosts_without_recorded_facts_are_all_told(verify: Verify, tmp_path: Path) -> None:
    folder = recorded(tmp_path / "facts", there=BOX)
    cluster = inventory(tmp_path / "inventory", {"one": {}, "there": {}, "two": {}})
    done = verify(cluster, *JSON, "-e", f"preflight_facts={folder}")
    assert done.returncode == 2, done.stderr
    told = json.loads(done.stdout)
    assert (told["ok"], told["failures"]) == (None, [])
    assert {name: (host["ok"], host["why"]) for name, host in told["hosts"].items()} == {
        "one": (None, f"{folder}/one.json is not there"),
        "there": (None, "the node was not read"),
        "two": (None, f"{folder}/two.json is not there"),
    }


def test_verify_cannot_tell_of_a_node_that_is_not_reached(verify: Verify, away: Path) -> None:
    done = verify(away, "--json")
    assert done.returncode == 2, done.stderr
    assert json.loads(done.stdout) == {
        "ok": None,
        "failures": [],
        "hosts": {"away": {"ok": None, "why": "the node could not be reached"}},
    }


@pytest.mark.parametrize("given", [[], ["/nonexistent"]], ids=["nothing", "no inventory"])
def test_verify_refuses_bad_usage(verify: Verify, given: list[str]) -> None:
    done = verify(*given, *JSON)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: script/verify" in done.stderr


@pytest.mark.parametrize("cluster", sorted(path.name for path in (ROOT / "inventories").iterdir() if path.is_dir()))
def test_an_example_inventory_is_read(cluster: str) -> None:
    program, folder = Path(sys.executable).parent / "ansible-inventory", ROOT / "inventories" / cluster
    command = [str(program), "-i", str(folder), "--list"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "[WARNING]" not in done.stderr
    assert json.loads(done.stdout)["_meta"]["hostvars"]
