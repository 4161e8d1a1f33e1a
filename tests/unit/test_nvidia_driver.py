# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module nvidia_driver with recorded readings and small programs in place of apt and dpkg; its role's switch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.sglang.plugins.modules import nvidia_driver

Run = Callable[..., dict[str, Any]]
CARD = {"address": "0000:01:00.0", "index": 0, "power_min": 400.0, "power_max": 600.0, "power_limit": 600.0}
KERNEL = {"release": "6.1.0-1-amd64"}


def reading(version: str = "580.95.05", kernel: dict[str, str] | None = None, **driver: Any) -> dict[str, Any]:
    return {"gpus": [CARD], "kernel": kernel or KERNEL, "driver": {"version": version, **driver}}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call the module on a node with these ``installed`` packages, where apt would do these ``steps``."""

    def call(
        installed: str = "580.95.05", steps: str = "", check: bool = False, status: str = "installed", **given: Any
    ) -> dict[str, Any]:
        row = rf"%s\t%s-1\thold\t{status}\n"
        rows = "".join(f"printf '{row}' {name} {installed}\n" for name in ("libcuda1", "nvidia-open") if installed)
        scripts = {"dpkg-query": rows, "apt-get": f"echo $* >> {tmp_path}/apt\necho '{steps}'", "apt-mark": "true"}
        for name, script in scripts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        # What serves on the machine that runs these tests.
        monkeypatch.setattr(nvidia_driver, "instances", tuple)
        given = {"packages": ["nvidia-open"], "recorded": reading()} | given
        with patch_module_args(given | {"_ansible_check_mode": check}), pytest.raises(SystemExit):
            nvidia_driver.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return call


def test_a_run_that_was_killed_while_dpkg_worked_is_told_as_such(run: Run) -> None:
    """Its packages are unpacked and not installed; nobody used NVIDIA's own installer."""
    said = run(state="judged", status="unpacked")["msg"]
    assert "apt.interrupted" in said
    assert "nvidia-uninstall" not in said


def asked(folder: Path) -> str:
    return (folder / "apt").read_text() if (folder / "apt").exists() else ""


@pytest.mark.parametrize(
    ("driver", "found"),
    [
        ({"version": ""}, "driver.not_loaded"),
        ({"library": "580.105.08"}, "driver.mismatch"),
        ({"complaint": "nvidia-smi -q -x did not answer within 60 s"}, "driver.complaint"),
    ],
)
def test_a_container_is_left_alone_only_where_its_driver_runs(run: Run, driver: dict[str, str], found: str) -> None:
    inside = {**KERNEL, "container": "podman"}
    result = run(state="judged", recorded=reading(kernel=inside))
    assert (result["managed"], [finding["id"] for finding in result["findings"]]) == (False, ["driver.container"])
    assert found in run(state="judged", recorded=reading(kernel=inside, **driver))["msg"]


def test_a_driver_that_runs_and_does_not_answer_ends_the_run(run: Run) -> None:
    assert run(state="loaded")["findings"] == []
    silent = reading(complaint="nvidia-smi -q -x did not answer within 60 s")
    assert run(state="present", recorded=silent)["changed"] is False
    assert "driver.complaint" in run(state="loaded", recorded=silent)["msg"]


def test_a_driver_that_somebody_upgraded_ends_the_run_although_apt_changes_nothing(run: Run, tmp_path: Path) -> None:
    result = run("580.105.08", state="present")
    assert (result["changed"], result["reboot_pending"], asked(tmp_path)) == (False, True, "")
    assert "driver.reboot_pending" in run("580.105.08", state="loaded")["msg"]


def test_the_limit_in_force_is_told(run: Run) -> None:
    assert run(state="loaded", power_limit=450)["power_differs"] == ["0000:01:00.0"]
    assert run(state="loaded", power_limit=600)["power_differs"] == []
    assert "driver.power_limit" in run(state="judged", power_limit=0)["msg"]


def test_a_driver_of_an_older_branch_is_upgraded(run: Run, tmp_path: Path) -> None:
    old, step = reading("570.195.03"), "Inst libcuda1 [570.195.03-1] (580.95.05-1 NVIDIA CUDA [amd64])"
    assert run("570.195.03", step, state="present", recorded=old)["steps"] == [step]
    update, simulated, installed = asked(tmp_path).splitlines()
    assert (update[:6], "--simulate" in simulated, "--yes" in installed) == ("update", True, True)
    # The repository has none.
    assert "driver.branch" in run("570.195.03", state="present", recorded=old)["msg"]
    # Whether it has, check mode cannot tell.
    assert run("570.195.03", state="present", recorded=old, check=True)["changed"] is False


def test_check_mode_asks_for_no_version_of_a_source_that_is_still_to_come(run: Run) -> None:
    result = run(state="latest", version="580.105.08", check=True)
    assert (result["changed"], result["version"]) == (False, "580.95.05")
    assert "driver.version" in run(state="latest", version="580.105.08")["msg"]


@pytest.mark.parametrize(("given", "judged"), [("false", False), ("true", True)])
def test_the_switch_is_what_its_word_says(play, tmp_path: Path, given: str, judged: bool) -> None:
    role = {"ansible.builtin.include_role": {"name": "inference.sglang.nvidia_driver"}}
    play(role, {"node1": {}}, "-e", f"nvidia_driver_manage={given}")
    assert (tmp_path / "connected").exists() == judged
