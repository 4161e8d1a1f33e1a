# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module serving_plan on small trees that stand for a node; a script that prints recorded text is its nvidia-smi."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import shapes
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.sglang.plugins.module_utils import activations, health, models, probes
from ansible_collections.inference.sglang.plugins.module_utils.gpus import CARDS, NodeGpus
from ansible_collections.inference.sglang.plugins.modules import serving_plan

HERE = Path(__file__).parent
DATA = HERE / "data" / "gpus"
Read = Callable[..., dict[str, Any]]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with two H200 on its bus, in which systemd runs nothing."""
    for name in ("etc/sglang", "units", "programs", "proc"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(serving_plan, "ROOT", tmp_path)
    monkeypatch.setattr(activations, "FOLDER", tmp_path / "etc/sglang")
    monkeypatch.setattr(health, "UNIT_FOLDER", tmp_path / "units")
    monkeypatch.setenv("PATH", f"{tmp_path}/programs:/usr/bin:/bin")
    program(tmp_path, "systemctl", "echo ActiveState=inactive")
    for number in (6, 7):
        device = tmp_path / f"sys/bus/pci/devices/0000:00:0{number}.0"
        device.mkdir(parents=True)
        for name, value in (("vendor", "0x10de"), ("class", "0x030200"), ("device", "0x2335")):
            (device / name).write_text(f"{value}\n")
    return tmp_path


def program(root: Path, name: str, script: str) -> None:
    path = root / "programs" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def nvidia_smi(
    root: Path, query: Path = DATA / "two_h200.xml", topology: str = "two_h200.txt", other: str = ""
) -> None:
    program(
        root,
        "nvidia-smi",
        f'echo "$* $LC_ALL" >> {root}/calls\n'
        f'case "$*" in "-q -x") cat {query};; "topo -m") cat {DATA / topology};; *) printf "{other}";; esac',
    )


@pytest.fixture
def read(root: Path, capsys: pytest.CaptureFixture[str]) -> Read:
    """Call the module with these arguments; its result."""

    def call(check: bool = False, **arguments: object) -> dict[str, Any]:
        with patch_module_args(arguments | {"_ansible_check_mode": check}), pytest.raises(SystemExit):
            serving_plan.main()
        return json.loads(capsys.readouterr().out)

    return call


def test_gpus_of_a_node_reach_the_controller(root: Path, read: Read) -> None:
    nvidia_smi(root)
    (root / "proc/591").mkdir()
    (root / "proc/591/cgroup").write_text("0::/system.slice/vllm.service\n")
    result = read()
    assert (result["changed"], result["facts"]["findings"]) == (False, [])
    node = NodeGpus.from_dict(result["facts"]["gpus"])
    assert (node.driver, node.link(), node.card()) == ("580.159.04", "nvlink", CARDS["h200"])
    (process,) = node.gpus[1].processes
    assert (process.unit, process.cgroup) == ("vllm.service", "/system.slice/vllm.service")
    assert (root / "calls").read_text() == "-q -x C\ntopo -m C\n"
    assert read(check=True) == read()


def test_the_capability_of_an_unknown_card_is_asked_for(root: Path, read: Read) -> None:
    unknown = root / "query.xml"
    unknown.write_text((DATA / "two_h200.xml").read_text().replace("NVIDIA H200", "NVIDIA H200 NVL"))
    nvidia_smi(root, query=unknown, other="9.0\\n9.0\\n")
    node = NodeGpus.from_dict(read()["facts"]["gpus"])
    assert [(gpu.card.name, gpu.card.capability) for gpu in node.gpus] == [("h200_nvl", 90)] * 2


def test_a_single_gpu_is_linked_to_none(root: Path, read: Read) -> None:
    one = re.sub(r"(?s)(</gpu>).*</gpu>", r"\1", (DATA / "two_h200.xml").read_text())
    (root / "query.xml").write_text(one.replace("<attached_gpus>2", "<attached_gpus>1"))
    nvidia_smi(root, query=root / "query.xml")
    result = read()
    assert (len(result["facts"]["gpus"]["gpus"]), result["facts"]["gpus"]["links"], result["facts"]["findings"]) == (
        1,
        {},
        [],
    )
    assert (root / "calls").read_text() == "-q -x C\n"


def test_a_node_without_nvidia_smi_has_no_gpus_yet(root: Path, read: Read) -> None:
    result = read()
    assert (result["facts"]["gpus"], result["facts"]["findings"]) == (None, [])


@pytest.mark.parametrize(
    ("script", "seen"),
    [
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
            "nvidia-smi -q -x ended with status 18: Failed to initialize NVML: Driver/library version mismatch",
        ),
        ("exec sleep 30", "nvidia-smi -q -x did not answer within 1 s"),
        ("trap '' TERM; while :; do sleep 0.1; done", "nvidia-smi -q -x did not answer within 1 s"),
    ],
)
def test_a_driver_that_tells_nothing(
    root: Path, read: Read, monkeypatch: pytest.MonkeyPatch, script: str, seen: str
) -> None:
    monkeypatch.setattr(probes, "LIMIT", 1)
    monkeypatch.setattr(probes, "GRACE", 1)
    program(root, "nvidia-smi", script)
    result = read()
    (finding,) = result["facts"]["findings"]
    assert (result["facts"]["gpus"], finding["id"], finding["severity"]) == (None, "gpus.unreadable", "error")
    assert finding["seen"] == f"the node has 2 NVIDIA GPU(s), {seen}"


def test_a_driver_without_a_gpu_is_no_fault(root: Path, read: Read) -> None:
    shutil.rmtree(root / "sys/bus")
    program(root, "nvidia-smi", "echo No devices were found; exit 6")
    result = read()
    assert (result["facts"]["gpus"], result["facts"]["findings"]) == (None, [])


def test_nvidia_smi_is_not_asked_where_nobody_wants_a_gpu(root: Path, read: Read) -> None:
    nvidia_smi(root)
    assert read(gpus=False)["facts"]["gpus"] is None
    assert not (root / "calls").exists()


def test_text_that_cannot_be_read_is_a_finding(root: Path, read: Read) -> None:
    nvidia_smi(root, topology="eight_rtx_pro_6000_mig.xml")
    result = read()
    assert [finding["id"] for finding in result["facts"]["findings"]] == ["gpus.topology"]
    assert NodeGpus.from_dict(result["facts"]["gpus"]).link() == "nvlink"
    nvidia_smi(root, query=Path("/dev/null"))
    result = read()
    assert [finding["id"] for finding in result["facts"]["findings"]] == ["gpus.unreadable"]
    assert result["facts"]["gpus"] is None


@pytest.fixture
def model(root: Path) -> Path:
    folder = root / "model"
    folder.mkdir()
    shutil.copy(shapes.path("kimi-k2.5"), folder / "config.json")
    return folder


def shape_of(facts: dict[str, Any]) -> tuple[models.Shape, list[Any]]:
    given = facts["model"]
    return models.read(given["config"], index=given["index"], quantization=given["quantization"])


@pytest.mark.parametrize("drafts", [0, 1])
def test_a_model_is_the_same_on_the_controller(model: Path, read: Read, drafts: int) -> None:
    layers = 61 + drafts
    names = [
        f"language_model.model.layers.{n}.mlp.experts.{e}.up_proj.weight" for n in range(layers) for e in range(40)
    ]
    index = {"metadata": {"total_size": 594 * 10**9}, "weight_map": dict.fromkeys(["lm_head.weight", *names], "1")}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    config = json.loads((model / "config.json").read_text())
    config.get("text_config", config)["num_nextn_predict_layers"] = 1
    (model / "config.json").write_text(json.dumps(config))
    (model / "hf_quant_config.json").write_text('{"quantization": {}}')
    facts = read(model_path=str(model))["facts"]
    assert shape_of(facts) == models.load(model)
    assert shape_of(facts) == models.read(config, index=index)
    assert facts["model"]["quantization"] == {"quantization": {}}
    assert len(facts["model"]["index"]["weight_map"]) == layers + 1, "not all of a large model's names"


def test_a_model_without_an_index_is_measured_by_its_files(model: Path, read: Read) -> None:
    header = json.dumps({"model.layers.0.a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    index = read(model_path=str(model))["facts"]["model"]["index"]
    assert index == {"metadata": {"total_size": 8}, "weight_map": {"model.layers.0.a": ""}}


def test_a_model_that_is_broken_or_not_there(model: Path, read: Read) -> None:
    (model / "config.json").write_text("{")
    result = read(model_path=str(model))
    assert result["facts"]["model"] is None
    assert [finding["id"] for finding in result["facts"]["findings"]] == ["model.unreadable"]
    for absent in (str(model / "absent"), None):
        result = read(**({"model_path": absent} if absent else {}))
        assert (result["facts"]["model"], result["facts"]["findings"]) == (None, [])


def instance(root: Path, name: str, plan: str, unit: bool = True) -> None:
    (root / "etc/sglang" / name).mkdir()
    (root / "etc/sglang" / name / "plan.json").write_text(plan)
    if unit:
        (root / "units" / f"sglang-{name}.service").touch()


def test_other_instances_and_their_gpus(root: Path, read: Read) -> None:
    for name, value in (("a", '"6,7"'), ("b", '" 5, 4 "'), ("own", '"0"'), ("uuid", '"GPU-12ab"'), ("empty", '""')):
        instance(root, name, f'{{"environment": {{"CUDA_VISIBLE_DEVICES": {value}}}}}')
    instance(root, "all", '{"environment": {}}')
    instance(root, "removed", '{"environment": {}}', unit=False)
    instance(root, "broken", "[")
    instance(root, "odd", '{"environment": 1}')
    assert read(instance="own")["facts"]["instances"] == [
        {"name": "a", "gpus": [6, 7]},
        {"name": "all", "gpus": None},
        {"name": "b", "gpus": [5, 4]},
        {"name": "empty", "gpus": []},
        {"name": "uuid", "gpus": None},
    ]


@pytest.mark.parametrize("written", ["[", "{}", '{"inputs": "a"}', "1"])
def test_a_plan_of_another_form_says_nothing_of_the_layout(root: Path, read: Read, written: str) -> None:
    instance(root, "own", written)
    assert read(instance="own")["facts"]["chosen"] is None
    assert read()["facts"]["chosen"] is None


def test_processors_and_memory_are_those_of_the_node(root: Path, read: Read) -> None:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/meminfo").write_text("MemTotal:  5 kB\nMemAvailable: 4 kB\n")
    assert read()["facts"]["host"] == {"processors": os.cpu_count(), "memory": 5 * 1024}


def test_the_present_plan_says_its_layout(root: Path, read: Read) -> None:
    instance(root, "own", '{"inputs": "0a1b", "layout": {"tensor": 8}, "environment": {}}')
    assert read(instance="own")["facts"]["chosen"] == {"inputs": "0a1b", "layout": {"tensor": 8}}


@pytest.mark.parametrize(
    ("said", "running"),
    [
        ("ActiveState=active", True),
        ("ActiveState=activating", True),
        ("ActiveState=inactive", False),
        ("ActiveState=failed", False),
        ("", False),
    ],
)
def test_whether_the_instance_itself_runs(root: Path, read: Read, said: str, running: bool) -> None:
    program(root, "systemctl", f"echo '{said}'")
    assert read(instance="kimi")["facts"]["unit"] == {"name": "sglang-kimi.service", "running": running}


def test_no_instance_and_no_systemd(root: Path, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read()["facts"]["unit"] == {"name": "", "running": False}
    monkeypatch.setattr(health, "unit_state", lambda _name: (root / "absent").read_text())
    assert read(instance="kimi")["facts"]["unit"] == {"name": "sglang-kimi.service", "running": False}
