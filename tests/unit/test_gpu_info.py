# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module gpu_info on the recorded node: programs that print what it answered, and what its documentation says."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
import recorded
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.sglang.plugins.module_utils import probes
from ansible_collections.inference.sglang.plugins.module_utils.hardware import Hardware
from ansible_collections.inference.sglang.plugins.modules import gpu_info


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The node with two H200, and its nvidia-smi."""
    recording = recorded.load("two_h200")
    recorded.plant(recording, tmp_path)
    monkeypatch.setattr(gpu_info, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/programs:/usr/bin:/bin")
    monkeypatch.setattr(probes, "_PLACES", ())
    (tmp_path / "programs").mkdir()
    cases = []
    for number, (command, text) in enumerate(recording["answers"].items()):
        program, *arguments = command.split(" ")
        answer = tmp_path / f"answer{number}"
        answer.write_text((recorded.DATA / text[1:]).read_text() if text.startswith("@") else text)
        if program == "nvidia-smi":
            cases.append(f"{shlex.quote(' '.join(arguments))}) cat {answer};;")
    program_file(tmp_path, "nvidia-smi", f'case "$*" in {" ".join(cases)} *) echo no such option; exit 2;; esac')
    for name in ("mokutil", "systemctl", "journalctl"):
        program_file(tmp_path, name, "exit 1")
    return tmp_path


def program_file(root: Path, name: str, script: str) -> None:
    path = root / "programs" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def run(capsys: pytest.CaptureFixture[str], check: bool = False, **arguments: object) -> dict[str, Any]:
    with patch_module_args(arguments | {"_ansible_check_mode": check}), pytest.raises(SystemExit):
        gpu_info.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_what_the_node_is(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, paths=["/opt/sglang", "/srv/models"])
    assert result["changed"] is False
    read = Hardware.from_dict(result["hardware"])
    assert [gpu.product for gpu in read.gpus] == ["NVIDIA H200"] * 2
    assert (read.links, read.driver.flavour, read.kernel.iommu) == ({(0, 1): "NV18"}, "open", "off")
    assert sorted(read.spaces) == ["/opt/sglang", "/srv/models"]
    again = run(capsys, check=True)["hardware"]
    assert again["gpus"] == result["hardware"]["gpus"]
    assert again["spaces"] == {}


def test_a_hung_driver_costs_one_limit(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "LIMIT", 0.5)
    program_file(root, "nvidia-smi", "exec sleep 30")
    start = time.monotonic()
    read = Hardware.from_dict(run(capsys)["hardware"])
    assert time.monotonic() - start < 3
    assert read.driver.complaint == "nvidia-smi -q -x did not answer within 0.5 s"
    assert [(gpu.index, gpu.architecture) for gpu in read.gpus] == [(None, "hopper")] * 2
    assert (read.driver.version, read.driver.flavour) == ("580.159.04", "open")


def documented(contains: dict[str, Any]) -> dict[str, Any]:
    return {key: documented(value["contains"]) if "contains" in value else None for key, value in contains.items()}


def returned(value: Any, like: dict[str, Any] | None) -> Any:
    """The keys of a result, as deep as they are documented."""
    if like is None:
        return None
    if isinstance(value, list):
        return returned(value[0], like)
    return {key: returned(inner, like.get(key)) for key, inner in value.items()}


def test_every_key_is_documented(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = documented(yaml.safe_load(gpu_info.RETURN))
    assert returned({"hardware": run(capsys)["hardware"]}, keys) == keys
