# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What role node_settings reads of a node and tells of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.sglang.plugins.module_utils import node_settings
from ansible_collections.inference.sglang.plugins.module_utils.node_settings import State, Wanted
from ansible_collections.inference.sglang.plugins.modules import node_settings_info

ROLE = Path(__file__).resolve().parents[2] / "roles" / "node_settings"
# As systemctl shows Ubuntu's unit.
EXEC = (
    "ExecStart={ path=/usr/bin/nvidia-persistenced ; argv[]=/usr/bin/nvidia-persistenced --user nvidia-persistenced "
    "--no-persistence-mode --verbose ; ignore_errors=no ; start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) }\n"
)
GPU = "sys/bus/pci/devices/0000:01:00.0"
NODE = {
    "proc/sys/kernel/numa_balancing": "1\n",
    "proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/module/nvidia/parameters/x": "1\n",
    "sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "N\n",
    "proc/driver/nvidia/params": 'ResmanDebugLevel: 4294967295\nRegistryDwords: "ForceP2P=0x11;"\n',
    f"{GPU}/vendor": "0x10de\n",
    f"{GPU}/device": "0x2bb5\n",
    f"{GPU}/class": "0x030200\n",
    "proc/77/comm": "nvidia-persiste\n",
    "proc/77/cmdline": "/usr/bin/nvidia-persistenced\0--verbose\0",
    "proc/1/environ": "",
}


def read(root: Path, files: Mapping[str, str], shown: str = EXEC) -> State:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    names = ["kernel.numa_balancing", "net.ipv4.tcp_rmem", "no.such"]
    return node_settings.read(names, ["nvidia", "nvidia_uvm", "absent"], lambda *_words: (shown, ""), root)


def test_a_node_is_read(tmp_path: Path) -> None:
    state = read(tmp_path, NODE)
    assert state.sysctl == {
        "kernel.numa_balancing": "1",
        "net.ipv4.tcp_rmem": "4096 131072 6291456",
        "no.such": None,
    }
    assert (state.hugepages, state.container, state.gpus, state.driver) == ("madvise", "", True, True)
    assert state.options["nvidia_uvm"] == {"uvm_disable_hmm": "N"}
    assert state.options["nvidia"]["NVreg_RegistryDwords"] == "ForceP2P=0x11;"
    assert "absent" not in state.options
    assert state.persistenced.endswith("--user nvidia-persistenced --no-persistence-mode --verbose")
    assert state.running == "/usr/bin/nvidia-persistenced --verbose"


def test_a_bare_node_is_read(tmp_path: Path) -> None:
    def missing(*_words: str) -> tuple[str, str]:
        raise FileNotFoundError("systemctl")

    state = node_settings.read(["kernel.numa_balancing"], ["nvidia"], missing, tmp_path)
    assert state == State(sysctl={"kernel.numa_balancing": None})
    assert read(tmp_path, {"proc/1/environ": ""}, shown="ExecStart=\n").persistenced == ""


def test_a_value_is_compared_as_the_kernel_writes_it(tmp_path: Path) -> None:
    state = read(tmp_path, NODE)
    wanted = {"kernel.numa_balancing": True, "net.ipv4.tcp_rmem": "4096 131072  6291456", "no.such": 1, "unread": 1}
    assert node_settings.differing(state, wanted) == []
    assert node_settings.differing(state, wanted | {"kernel.numa_balancing": 0}) == ["kernel.numa_balancing"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("d --user u --no-persistence-mode --verbose", "d --user u --verbose --persistence-mode"),
        ("d --user u", "d --user u --persistence-mode"),
        ("d --persistence-mode", "d --persistence-mode"),
        ("", ""),
    ],
)
def test_the_daemon_keeps_the_gpus_whatever_its_unit_says(command: str, expected: str) -> None:
    assert node_settings.persistent(command) == expected
    assert node_settings.persistent(expected) == expected


MACHINE = State(gpus=True, driver=True, persistenced="d", options={"nvidia_uvm": {"uvm_disable_hmm": "N"}})
HMM = Wanted(options={"nvidia_uvm": {"uvm_disable_hmm": "1"}}, persistence=True)


@pytest.mark.parametrize(
    ("state", "wanted", "expected"),
    [
        (MACHINE, HMM, "node_settings.reboot_pending"),
        (replace(MACHINE, options={"nvidia_uvm": {"uvm_disable_hmm": "Y"}}), HMM, None),
        (replace(MACHINE, options={}), HMM, None),
        (replace(MACHINE, options={"nvidia_uvm": {}}), HMM, None),
        (MACHINE, Wanted(options={"nvidia_uvm": {"uvm_disable_hmm": "0"}}), None),
        (replace(MACHINE, persistenced=""), Wanted(persistence=True), "node_settings.no_persistenced"),
        (replace(MACHINE, persistenced=""), Wanted(persistence=False), None),
        (replace(MACHINE, persistenced="", gpus=False), Wanted(persistence=True), None),
        (replace(MACHINE, persistenced="", container="podman"), HMM, "node_settings.container"),
    ],
)
def test_what_lacks_is_told(state: State, wanted: Wanted, expected: str | None) -> None:
    found = node_settings.judge(state, wanted)
    assert [finding.id for finding in found] == ([expected] if expected else [])


def test_the_module_returns_what_the_tasks_decide_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = read(tmp_path, NODE)
    reading: Callable[..., State] = lambda names, modules: state  # noqa: E731
    monkeypatch.setattr(node_settings, "read", reading)
    given: dict[str, Any] = {
        "sysctl": {"kernel.numa_balancing": False},
        "module_options": {"nvidia_uvm": {"uvm_disable_hmm": True}},
        "persistence": True,
    }
    with patch_module_args(given), pytest.raises(SystemExit):
        node_settings_info.main()
    result = json.loads(capsys.readouterr().out)
    assert result["sysctl_differs"] == ["kernel.numa_balancing"]
    assert result["persistenced"].endswith("--verbose --persistence-mode")
    assert [finding["id"] for finding in result["findings"]] == ["node_settings.reboot_pending"]
    monkeypatch.setattr(node_settings, "read", lambda names, modules: replace(state, driver=False))
    with patch_module_args(given), pytest.raises(SystemExit):
        node_settings_info.main()
    assert json.loads(capsys.readouterr().out)["persistenced"] == ""


def test_every_task_stands_under_its_switch() -> None:
    """What is on by default is what the README gives a reason for."""
    tasks = yaml.safe_load((ROLE / "tasks" / "machine.yml").read_text())
    included = {task["ansible.builtin.include_tasks"]: task.get("when") for task in tasks if "include" in str(task)}
    assert {name for name, when in included.items() if when is None} == {"boot.yml"}
    (boot,) = [
        task["inference.sglang.boot_parameters"]
        for task in yaml.safe_load((ROLE / "tasks" / "boot.yml").read_text())
        if "inference.sglang.boot_parameters" in task
    ]
    assert boot["fix"] == "{{ __node_settings_set.preflight_fix_boot }}"
    readme = (ROLE / "README.md").read_text()
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    assert [name for name in defaults if f"| `{name}` |" not in readme] == []
