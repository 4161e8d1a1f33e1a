# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plans by ansible-playbook: of the example inventories without a node, and of a node that recorded text stands for."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GPUS = Path(__file__).parent / "data" / "gpus"
SHAPES = ROOT / "roles" / "sglang_server" / "files" / "shapes"
Results = list[tuple[str, str, str, dict[str, Any]]]


def shown(results: Results, task: str) -> Any:
    (result,) = [result for name, _outcome, _host, result in results if name.endswith(task) and "msg" in result]
    return result["msg"]


@pytest.mark.parametrize("cluster", ["pp8-pcie", "ep8-pcie", "hgx"])
def test_an_example_is_planned_without_its_node(playbook: Callable[..., Results], tmp_path: Path, cluster: str) -> None:
    results = playbook(ROOT / "playbooks" / "plan.yml", ROOT / "inventories" / cluster)
    assert not (tmp_path / "connected").exists()
    assert {outcome for _task, outcome, _host, _result in results} == {"ok"}
    table = shown(results, "Show the plan")
    for words in ("tok/s", "--tp-size", "GiB of each GPU", "The KV cache holds", "kernels that these flags compile"):
        assert words in table
    assert "warning: " not in table
    assert "ExecStart=" in shown(results, "Show its unit, on a node with Python 3.12")


def test_the_plan_for_programs_is_all_of_it(
    playbook: Callable[..., Results], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PWD", str(tmp_path))  # as a shell in that folder has it
    playbook(ROOT / "playbooks" / "plan.yml", ROOT / "inventories" / "pp8-pcie", "-e", "plan_folder=plans/new")
    assert not (tmp_path / "connected").exists()
    plan = json.loads((tmp_path / "plans" / "new" / "gpu1.json").read_text(encoding="utf-8"))
    assert {"arguments", "environment", "digest", "reasons", "memory", "expected", "candidates", "warmup"} <= set(plan)
    assert plan["expected"]["loaded"]["requests"] == 64
    assert plan["layout"]["pipeline"] == 8
    assert all(words[0] in plan["reasons"] for words in plan["arguments"][4:])
    assert plan["ahead"] == [kernel["name"] for kernel in plan["warmup"] if not kernel["needs_gpu"]]


def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **variables: Any) -> Path:
    """An inventory of this machine, with a script that prints what nvidia-smi printed on two H200."""
    programs = tmp_path / "programs"
    programs.mkdir()
    idle = re.sub(r"(?s)<process_info>.*?</process_info>", "", (GPUS / "two_h200.xml").read_text())
    (programs / "idle.xml").write_text(idle)
    smi = programs / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\ncase "$*" in "-q -x") cat {programs}/idle.xml;; *) cat {GPUS}/two_h200.txt;; esac\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    model = tmp_path / "model"
    model.mkdir()
    shutil.copy(SHAPES / "llama-3.1-8b.json", model / "config.json")
    inventory = tmp_path / "inventory"
    inventory.mkdir()
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_become": False,
        "sglang_python_version": "3.12",
        "model_weights_path": str(model),
        **variables,
    }
    (inventory / "hosts.json").write_text(json.dumps({"all": {"hosts": {"node": host}}}))
    return inventory


@pytest.mark.parametrize("check", [(), ("--check",)], ids=["run", "check"])
def test_a_reached_node_is_planned_from_what_it_has(
    playbook: Callable[..., Results], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: tuple[str, ...]
) -> None:
    inventory = node(tmp_path, monkeypatch)
    results = playbook(ROOT / "playbooks" / "plan.yml", inventory, "-e", "plan_reach=true", *check)
    table = shown(results, "Show the plan")
    assert "LlamaForCausalLM on 2 x h200 over nvlink" in table
    assert "\n--tp-size 2 " in table
    assert "Environment=FLASHINFER_CUDA_ARCH_LIST=9.0a" in shown(results, "Show its unit, on a node with Python 3.12")


def test_what_the_node_does_not_have_fails_with_every_error(
    playbook: Callable[..., Results], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = {"sglang_server_gpu_count": 8, "sglang_server_gpu_model": "b200"}
    inventory = node(tmp_path, monkeypatch, **declared)
    results = playbook(ROOT / "playbooks" / "plan.yml", inventory, "-e", "plan_reach=true")
    task, outcome, _host, result = results[-1]
    assert (task.rpartition(": ")[2], outcome) == ("Plan the instance", "failed")
    assert "nothing was changed" in result["msg"]
    assert [finding["id"] for finding in result["findings"] if finding["severity"] == "error"] == ["gpus.declared"] * 2


def test_a_key_is_in_no_result(playbook: Callable[..., Results], tmp_path: Path) -> None:
    inventory = ROOT / "inventories" / "pp8-pcie"
    secret = "sk-hunter2hunter2"  # noqa: S105 # made up
    arguments = ("-e", f"sglang_server_api_key={secret}", "-e", "sglang_server_host=0.0.0.0", "-vvv")
    results = playbook(ROOT / "playbooks" / "plan.yml", inventory, *arguments)
    assert "--config /etc/sglang/kimi/secrets.yml" in shown(results, "Show the plan")
    assert secret not in json.dumps(results)
