# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The settings of whole inventories, judged by ansible-playbook without a connection to any node."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.inference.sglang.plugins.module_utils import settings

ROOT = Path(__file__).parents[2]
GOOD = {"model_weights_path": "/srv/models/tiny"}
REPOSITORY = {
    "cuda_repository_url": "https://mirror.example/cuda/",
    "cuda_repository_key": "https://mirror.example/cuda/key.gpg",
}
PACKAGES = {"cuda_toolkit_method": "apt", **REPOSITORY}
MIRROR = {"model_weights_source": "url", "model_weights_url": "https://m.example"}
DRIVER = {"nvidia_driver_manage": True, **REPOSITORY}

# Each host has its own fault: what must be found, by id and by words of the finding.
FAULTS = {
    "misspelt": ({**GOOD, "sglang_sever_port": 30000}, "settings.unknown", "Rename it to sglang_server_port"),
    "wrong_type": ({**GOOD, "sglang_server_port": "eighty"}, "settings.type", "is 'eighty', not a whole number"),
    "element_type": ({**GOOD, "nccl_proof_sizes": ["big"]}, "settings.type", "holds something that is not a whole"),
    "quiet_type": ({**GOOD, "sglang_root": ["/opt/sglang"]}, "settings.type", "sglang_root is of type list"),
    "hidden": ({**GOOD, "uv_environment": "token: hunter2"}, "settings.type", "uv_environment is of type str"),
    "choice": ({**GOOD, "model_weights_source": "floppy"}, "settings.choice", "path, tiny-llama"),
    "unset": ({}, "settings.required", "model_weights_path is not set"),
    "null": ({**GOOD, "sglang_root": None}, "settings.empty", "sglang_root is set to nothing"),
    "release": ({**GOOD, "sglang_release": "0.4.0"}, "release.unknown", "0.5.12.post1"),
    "flag": ({**GOOD, "sglang_server_flags": {"pp-sise": 4}}, "flag.unknown", "--pp-size"),
    "case_c16": (
        {**GOOD, "sglang_release": "0.5.23", "sglang_server_flags": {"cuda-graph-max-bs": 64}},
        "flag.removed",
        "Use --cuda-graph-max-bs-decode",
    ),
    "twice": (
        {
            **GOOD,
            "sglang_server_cuda_graph_max_batch_size": "8",
            "sglang_server_flags": {"cuda-graph-max-bs": 64},
        },
        "spelling.twice",
        "Keep sglang_server_cuda_graph_max_batch_size",
    ),
    "range": ({**GOOD, "sglang_server_cuda_graph_max_batch_size": 0}, "spelling.range", "whole number from 1 on"),
    "known_fault": (
        {**GOOD, "sglang_python_version": "3.13", "sglang_server_flags": {"grammar-backend": "outlines"}},
        "release.known_fault",
        "Use xgrammar",
    ),
    "toolkit": ({**GOOD, "cuda_toolkit_version": "12.8"}, "toolkit.unknown", "13.0"),
    "case_c02": (
        {**GOOD, **PACKAGES, "cuda_toolkit_packages": ["cuda-13-0", "libnccl2"]},
        "apt.pulls_driver",
        "Use cuda-toolkit-13-0",
    ),
    "no_repository": ({**GOOD, **PACKAGES, "cuda_repository_url": ""}, "apt.url", "cuda_repository_url"),
    "no_key": ({**GOOD, **PACKAGES, "cuda_repository_key": ""}, "apt_key.none", "cuda_repository_key is not set"),
    "key_file": (
        {**GOOD, **DRIVER, "cuda_repository_key": "keys/none.gpg"},
        "apt_key.missing",
        "inventory/keys/none.gpg",
    ),
    "key_url": ({**GOOD, **DRIVER, "cuda_repository_key": "http://mirror.example/key"}, "apt_key.url", "Use an https"),
    "driver_source": ({**GOOD, **DRIVER, "cuda_repository_url": "mirror.example/cuda"}, "apt.url", "http or https URL"),
    "case_c03": (
        {**GOOD, **DRIVER, "nvidia_driver_packages": ["nvidia-driver-580-server"]},
        "apt.proprietary",
        "Use nvidia-open",
    ),
    "driver_branch": ({**GOOD, **DRIVER, "nvidia_driver_branch": "570"}, "apt.branch_old", "580 or newer"),
    "toolkit_home": ({**GOOD, "cuda_toolkit_home": "/usr/local/cuda"}, "toolkit.home", "existing"),
    "old_toolkit": (
        {**GOOD, "cuda_toolkit_method": "existing", "cuda_toolkit_version": "12.8"},
        "toolkit.torch",
        "SM120 JIT needs >= 12.9",
    ),
    "patch": ({**GOOD, "sglang_patches": ["triton-layer-prob"]}, "patch.unknown", "triton-layer-probe"),
    "nested_patch": ({**GOOD, "sglang_patches": [["pp-abort"]]}, "patch.entry_invalid", "given as list"),
    "patch_file": (
        {**GOOD, "sglang_patches": ["patches/none.yml"]},
        "patch.definition_missing",
        "no file patches/none",
    ),
    "patch_alone": (
        {**GOOD, "sglang_release": "0.5.12.post1", "sglang_patches": ["swa-start-layer"]},
        "patch.requirement_missing",
        "Add triton-layer-probe",
    ),
    "patch_twice": ({**GOOD, "sglang_patches": ["pp-abort", "pp-abort"]}, "patch.duplicate", "2 times"),
    "float": ({**GOOD, "cuda_toolkit_version": 13.0}, "settings.type", "in quotes"),
    "text_for_list": ({**GOOD, "sglang_patches": "triton-layer-probe"}, "settings.type", "a YAML list, or"),
    "text_for_dict": ({**GOOD, "sglang_server_flags": '{"pp-size": 8}'}, "settings.type", "a YAML mapping, or"),
    "relative": (
        {
            "model_weights_source": "tiny-llama",
            "model_weights_path": "models/tiny",
            "sglang_server_model_path": "/srv/x",
        },
        "settings.path",
        "'models/tiny', not an absolute path",
    ),
    "branch": (
        {
            **GOOD,
            "model_weights_source": "huggingface",
            "model_weights_repository": "a/b",
            "model_weights_revision": "main",
        },
        "weights.unpinned",
        "git ls-remote",
    ),
    "checksums": (
        {**GOOD, **MIRROR, "model_weights_checksums": "none.sha256"},
        "weights.setting",
        "inventory/none.sha256",
    ),
    "seed": (
        {**GOOD, **MIRROR, "model_weights_checksums": "https://m.example/s", "model_weights_seed": "gpu9"},
        "weights.setting",
        "no host of the inventory",
    ),
    "no_lock": ({**GOOD, "sglang_python_version": "3.10"}, "release.python", "3.12"),
    "options_flat": ({**GOOD, "node_settings_module_options": {"nvidia_uvm": 3}}, "settings.value", "nvidia_uvm 3"),
    "priority": ({**GOOD, "cuda_repository_priority": 2000}, "settings.value", "from 1 to 999"),
    "proxy": ({**GOOD, "cuda_repository_proxy": "u:hunter2"}, "settings.value", "Write it as http://host:port"),
    "undefined": ({**GOOD, "sglang_release": "{{ nowhere }}"}, "settings.unresolved", "nowhere"),
}


def test_every_fault_is_found_without_a_connection(play, tmp_path):
    hosts = {name: variables for name, (variables, _id, _words) in FAULTS.items()}
    results = play({"inference.sglang.validate_settings": {}}, hosts | {"good": GOOD})
    assert not (tmp_path / "connected").exists()
    assert results["good"][0] == "ok"
    for name, (_variables, expected, words) in FAULTS.items():
        outcome, result = results[name]
        assert outcome == "failed"
        assert [finding["id"] for finding in result["findings"]] == [expected], name
        (finding,) = result["findings"]
        assert words in finding["seen"] + finding["remedy"]
        assert "hunter2" not in json.dumps(result)
        assert f"{name}: error: {expected}: " in result["msg"]


def numbers() -> dict[str, object]:
    """Every number among the roles' variables, with one that nobody means."""
    found: dict[str, object] = {}
    for path in sorted((ROOT / "roles").glob("*/meta/argument_specs.yml")):
        for entry in yaml.safe_load(path.read_text())["argument_specs"].values():
            for name, option in entry.get("options", {}).items():
                if option.get("type") in ("int", "float"):
                    found[name] = -7
                elif option.get("elements") in ("int", "float"):
                    found[name] = [-7]
    return found


def test_every_number_has_a_range(play):
    """A new one needs an entry in ``settings.VALUES``, or to be judged elsewhere, and to be named in ``ELSEWHERE``."""
    absurd = numbers()
    assert set(absurd) <= {*settings.VALUES, *settings.ELSEWHERE}
    assert not set(settings.VALUES) & set(settings.ELSEWHERE)
    results = play({"inference.sglang.validate_settings": {}}, {name: {**GOOD, name: absurd[name]} for name in absurd})
    for name in absurd:
        outcome, result = results[name]
        assert outcome == "failed", name
        expected = settings.ELSEWHERE.get(name, "settings.value")
        told = [finding["seen"] for finding in result["findings"] if finding["id"] == expected]
        assert any(name in seen for seen in told), name


def test_every_form_is_of_a_variable_that_there_is():
    specs = [yaml.safe_load(path.read_text()) for path in (ROOT / "roles").glob("*/meta/argument_specs.yml")]
    known = {name for spec in specs for entry in spec["argument_specs"].values() for name in entry.get("options", {})}
    assert {*settings.VALUES, *settings.ELSEWHERE} <= known


def test_what_is_worth_a_warning_is_told_beside_the_errors(play):
    variables = {**GOOD, "nccl_proof_timeout": -5, "nvidia_drver_reboot": True}
    outcome, result = play({"inference.sglang.validate_settings": {}}, {"node1": variables})["node1"]
    assert outcome == "failed"
    head, error, warning = result["msg"].splitlines()
    assert head == "1 wrong in the settings of node1, nothing was changed:"
    assert error.startswith(
        "node1: error: settings.value: nccl_proof_timeout is -5. Set it to a number from 1 to 86400 s"
    )
    assert warning.startswith("node1: warning: settings.similar: nvidia_drver_reboot")


def test_a_key_beside_the_inventory_is_found(play, tmp_path):
    key = tmp_path / "inventory/keys/cuda.gpg"
    key.parent.mkdir(parents=True)
    key.write_bytes(b"judged on the node")
    for given in ("keys/cuda.gpg", str(key)):
        variables = {**GOOD, **DRIVER, **PACKAGES, "cuda_repository_key": given}
        outcome, result = play({"inference.sglang.validate_settings": {}}, {"node1": variables})["node1"]
        assert outcome == "ok", result
    filtered = {"ansible.builtin.debug": {"msg": "{{ 'keys/cuda.gpg' | inference.sglang.apt_key([inventory_dir]) }}"}}
    assert play(filtered, {"node1": {}})["node1"][1]["msg"] == "base64:anVkZ2VkIG9uIHRoZSBub2Rl"


def test_a_patch_beside_the_inventory_is_found_and_judged(play, tmp_path):
    own = {
        "id": "own",
        "summary": "Raise the limit",
        "distribution": "flashinfer-python",
        "file": "flashinfer/limits.py",
        "releases": {"0.5.12.post1": {"before": "a" * 64, "after": "b" * 64}},
        "edits": [{"old": "= 0", "new": "= 16"}],
        "probe": "pass",
    }
    folder = tmp_path / "inventory/patches"
    folder.mkdir(parents=True)
    (folder / "own.yml").write_text(json.dumps(own))
    (folder / "half.yml").write_text(json.dumps({"id": "half"}))
    chosen = {"own": ["pp-abort", "patches/own.yml"], "inline": ["pp-abort", own], "half": ["patches/half.yml"]}
    release = {**GOOD, "sglang_release": "0.5.12.post1"}
    hosts = {name: {**release, "sglang_patches": patches} for name, patches in chosen.items()}
    results = play({"inference.sglang.validate_settings": {}}, hosts)
    paths = set()
    for name in ("own", "inline"):
        outcome, result = results[name]
        assert outcome == "ok", result
        paths.add(result["settings"]["sglang_release_path"])
    (path,) = paths
    assert path.startswith("/opt/sglang/releases/0.5.12.post1-")
    outcome, result = results["half"]
    assert outcome == "failed"
    assert "patch.key_missing: Patch half: the definition has no probe" in result["msg"]
    assert str(folder / "half.yml") in result["msg"]


def test_all_faults_of_a_host_are_told_at_once(play):
    variables = {"sglang_sever_port": 1, "sglang_server_port": "eighty", "sglang_release": "0.4.0"}
    outcome, result = play({"inference.sglang.validate_settings": {}}, {"node1": variables})["node1"]
    assert outcome == "failed"
    assert {finding["id"] for finding in result["findings"]} == {
        "settings.unknown", "settings.type", "settings.required", "release.unknown",
    }  # fmt: skip
    assert len(result["msg"].splitlines()) == 1 + 4


@pytest.mark.parametrize(
    ("variables", "other"),
    [
        ({"sglang_server_port": "eighty"}, "settings.type"),
        ({"sglang_python_version": 3.12}, "settings.type"),
        ({"sglang_release": "0.4.0"}, "release.unknown"),
        ({"sglang_release": "{{ nowhere }}"}, "settings.unresolved"),
        ({"cuda_toolkit_version": "12.8"}, "toolkit.unknown"),
    ],
    ids=str,
)
def test_one_fault_hides_no_other_of_the_instance(play, variables, other):
    variables = {**variables, **GOOD, "sglang_server_host": "10.0.0.5", "sglang_server_restart_limit": 0}
    outcome, result = play({"inference.sglang.validate_settings": {}}, {"node1": variables})["node1"]
    assert outcome == "failed"
    assert {finding["id"] for finding in result["findings"]} == {other, "plan.exposed", "plan.range"}


def judged_with_facts(play, version):
    """The settings of a host whose fact ``python`` has this version."""
    fact = {"ansible.builtin.set_fact": {"python": {"version": version}, "cacheable": True}}
    return play({"block": [fact, {"inference.sglang.validate_settings": {}}]}, {"node1": GOOD})["node1"]


def test_a_default_that_fails_is_told_where_no_other_finding_tells_why(play):
    outcome, result = judged_with_facts(play, {})
    assert outcome == "failed"
    assert {finding["id"] for finding in result["findings"]} == {"settings.unresolved"}
    assert "sglang_python_version cannot be evaluated" in result["msg"]


def test_a_node_whose_python_has_no_lock_is_left_to_the_reading_of_the_node(play):
    outcome, result = judged_with_facts(play, {"major": 3, "minor": 10})
    assert outcome == "ok", result
    assert result["settings"]["sglang_python_version"] == "3.10"


def test_a_boolean_of_the_command_line_is_one_to_the_role(play):
    task = {"ansible.builtin.include_role": {"name": "inference.sglang.cpu_engine"}}
    given = {"sglang_root": "/opt/sglang", "sglang_release": "0.5.23", "sglang_release_path": "/opt/sglang/releases/x"}
    outcome, result = play(task, {"node1": {**given, "ansible_connection": "local"}}, "-e", "cpu_engine_enabled=false")[
        "node1"
    ]
    assert outcome != "failed", result


def test_strings_of_the_command_line_become_what_the_roles_want(play):
    extra = ("-e", "sglang_server_port=30001", "-e", "preflight_gpu_required=false")
    extra += ("-e", "cpu_engine_enabled=yes", "-e", '{"sglang_server_flags": {"pp-size": "8"}}')
    outcome, result = play({"inference.sglang.validate_settings": {}}, {"node1": GOOD}, "--check", *extra)["node1"]
    assert outcome == "ok", result
    given = result["settings"]
    assert given["sglang_server_port"] == 30001
    assert given["preflight_gpu_required"] is False
    assert given["cpu_engine_enabled"] is True
    assert given["sglang_server_flags"] == {"pp-size": "8"}
    assert given["sglang_server_model_path"] == GOOD["model_weights_path"]


def test_the_role_tells_all_that_is_wrong_with_a_node(play, tmp_path):
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "model_weights_path": str(tmp_path / "none"),
        "preflight_gpu_required": False,
        "sglang_python": str(tmp_path / "python"),
        "sglang_root": str(tmp_path),
    }
    outcome, result = play(
        {"ansible.builtin.include_role": {"name": "inference.sglang.preflight"}}, {"node1": variables}, "--check"
    )["node1"]
    assert outcome == "failed"
    for finding in ("error: model.missing:", "error: node.python:", "error: path.hidden:"):
        assert finding in result["msg"]
    assert "does not exist on the node" in result["msg"]


def test_a_toolkit_of_packages_has_no_lock_and_may_be_newer(play):
    newer = {**GOOD, **PACKAGES, "cuda_toolkit_version": "13.1"}
    outcome, result = play({"inference.sglang.validate_settings": {}}, {"node1": newer})["node1"]
    assert outcome == "ok"
    assert [finding["id"] for finding in result["findings"]] == ["toolkit.torch"]
    assert result["locks"]["toolkit"] == ""
    given = result["settings"]
    assert given["cuda_toolkit_home"] == "/usr/local/cuda-13.1"
    assert given["cuda_toolkit_path"] == "/opt/sglang/toolkits/13.1-apt"
    assert given["cuda_toolkit_packages"] == ["cuda-toolkit-13-1"]
    assert given["flashinfer_cache_path"].endswith("-13.1-apt")
