# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Names and values of the roles' variables."""

from __future__ import annotations

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import settings

SPECS = {
    "sglang": {"sglang_release": {"type": "str"}, "sglang_root": {"type": "path"}},
    "sglang_server": {"sglang_server_port": {"type": "int"}, "sglang_server_flags": {"type": "dict"}},
    "model_weights": {"model_weights_path": {"type": "path", "required": True}},
}


def test_the_longest_prefix_names_the_role():
    assert settings.role_of("sglang_server_port", SPECS) == "sglang_server"
    assert settings.role_of("sglang_port", SPECS) == "sglang"
    assert settings.role_of("sglangport", SPECS) is None


def test_a_misspelt_variable_gets_the_nearest_name_of_any_role():
    (finding,) = settings.unknown(SPECS, ["sglang_sever_port", "sglang_release"])
    assert (finding.id, finding.severity) == ("settings.unknown", "error")
    assert "sglang_sever_port carries the prefix of role sglang" in finding.seen
    assert "sglang_server_port" in finding.remedy
    assert finding.source == "roles/sglang_server/meta/argument_specs.yml"


def test_an_unknown_variable_without_a_neighbour_is_to_be_removed():
    (finding,) = settings.unknown(SPECS, ["sglang_xyzzy_qqq"])
    assert finding.remedy == "Remove it"
    assert finding.source == "roles/sglang/meta/argument_specs.yml"


def test_internal_names_and_names_of_others_are_free():
    assert not settings.unknown(SPECS, ["__sglang_server_port", "nginx_port", "ansible_host", "sglang_release"])


def test_a_misspelt_prefix_is_worth_a_warning():
    (finding,) = settings.unknown(SPECS, ["model_weight_path"])
    assert (finding.id, finding.severity) == ("settings.similar", "warning")
    assert "model_weights_path" in finding.remedy


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("str", ["a"]),
        ("str", True),
        ("str", 13.0),
        ("path", {"a": 1}),
        ("int", True),
        ("list", "a"),
        ("list", 1),
        ("dict", '{"a": 1}'),
    ],
    ids=str,
)
def test_what_ansible_would_convert_quietly_is_refused(kind, value):
    (finding,) = settings.misread("sglang_root", {"type": kind}, value)
    assert finding.id == "settings.type"
    assert f"is of type {type(value).__name__}" in finding.seen


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        ("str", 13.0, "in quotes"),
        ("list", "a", """a YAML list, or on the command line -e '{"sglang_x": ["..", ".."]}'"""),
        ("dict", "a", """a YAML mapping, or on the command line -e '{"sglang_x": {"..": ".."}}'"""),
    ],
)
def test_the_remedy_tells_how_to_write_it(kind, value, says):
    (finding,) = settings.misread("sglang_x", {"type": kind}, value)
    assert finding.remedy.endswith(says)


@pytest.mark.parametrize("value", ["org/some-model", "~/model", "models/x", ""])
def test_a_path_begins_at_the_root(value):
    (finding,) = settings.misread("model_weights_path", {"type": "path"}, value)
    assert finding.id == "settings.path"
    assert not settings.misread("model_weights_path", {"type": "path"}, "/srv/model")


def test_a_value_that_may_hold_a_secret_is_not_shown():
    (finding,) = settings.misread("sglang_server_key", {"type": "str"}, ["hunter2"])
    assert "hunter2" not in str(finding)


@pytest.mark.parametrize(("kind", "value"), [("str", "a"), ("str", 13), ("int", "8"), ("int", 8), ("bool", "false")])
def test_strings_of_the_command_line_are_fine(kind, value):
    assert not settings.misread("sglang_root", {"type": kind}, value)


def test_null_is_wrong_where_something_is_needed():
    assert [f.id for f in settings.misread("sglang_root", {"type": "path"}, None, "/opt/sglang")] == ["settings.empty"]
    assert [f.id for f in settings.misread("model_weights_path", {"required": True}, None)] == ["settings.empty"]
    assert not settings.misread("sglang_server_key", {"type": "str"}, None)


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [
        ("nccl_proof_timeout", -5, "is -5"),
        ("nccl_proof_timeout", float("nan"), "is nan"),
        ("nccl_proof_repeats", 0, "is 0"),
        ("nccl_proof_sizes", [65536, -1], "holds -1"),
        ("nvidia_driver_power_limit", -4, "is -4"),
        ("nvidia_driver_version", "580", "is '580'"),
        ("nvidia_driver_version", "580.x", "is '580.x'"),
        ("cuda_repository_priority", 1000, "is 1000"),
        ("cuda_repository_key_fingerprints", ["abc"], "holds 'abc'"),
        ("cuda_repository_key_fingerprints", [], "is empty"),
        ("cuda_repository_proxy", "foo", "is of another form"),
        ("cuda_repository_proxy", 'http://proxy:3128"; Dir "/', "is of another form"),
        ("cuda_toolkit_architecture", "sm_90", "is 'sm_90'"),
        ("cuda_toolkit_architecture", "90b", "is '90b'"),
        ("node_settings_acs_bridges", ["0000:40:01.1", "xx"], "holds 'xx'"),
        ("node_settings_limits", ["a b"], "holds 'a b'"),
        ("node_settings_limits", ["@bench\n"], "holds '@bench\\n'"),
        ("node_settings_sysctl", {"vm.max_map_count": "lots"}, "gives vm.max_map_count 'lots', not a number"),
        ("node_settings_sysctl", {"vm.max_map_count": [1]}, "gives vm.max_map_count a value of type list"),
        ("node_settings_sysctl", {"kernel.core_pattern": "a\nb"}, "gives kernel.core_pattern 'a\\nb'"),
        ("node_settings_sysctl", {"swappiness": 1}, "names 'swappiness'"),
        ("node_settings_sysctl", {1: 1}, "names 1"),
        ("node_settings_module_options", {"nvidia_uvm": 3}, "gives nvidia_uvm 3"),
        ("node_settings_module_options", {"nvidia uvm": {}}, "names 'nvidia uvm'"),
        ("node_settings_module_options", {"nvidia": {"a b": 1}}, "gives nvidia an option 'a b'"),
        ("node_settings_module_options", {"nvidia": {"a": None}}, "gives nvidia a=a value of type NoneType"),
        ("node_settings_module_options", {"nvidia": {"a": "1 b=2"}}, "gives nvidia a='1 b=2'"),
    ],
)
def test_a_value_of_another_form_is_refused(name, value, seen):
    (finding,) = settings.judge_value(name, value)
    assert (finding.id, finding.severity) == ("settings.value", "error")
    assert finding.seen == f"{name} {seen}"
    assert not finding.remedy.endswith(".")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nccl_proof_timeout", 1),
        ("nccl_proof_sizes", None),
        ("nccl_proof_sizes", [65536, 1 << 28]),
        ("cuda_repository_key_fingerprints", ["EB69 3B30 35CD 5710 E231  E123 A4B4 6996 3BF8 63CC"]),
        ("cuda_repository_key_fingerprints", ["0xeb693b3035cd5710e231e123a4b469963bf863cc", "a" * 64]),
        ("cuda_repository_priority", 999),
        ("cuda_repository_proxy", ""),
        ("cuda_repository_proxy", "http://user:secret@proxy.example:3128/"),
        ("cuda_repository_proxy", "https://[fd00::1]:3128"),
        ("cuda_toolkit_architecture", "90"),
        ("cuda_toolkit_architecture", "90a"),
        ("cuda_toolkit_architecture", "103f"),
        ("nvidia_driver_version", ""),
        ("nvidia_driver_version", "580.105.08"),
        ("nvidia_driver_version", "1:580.95.05-0ubuntu1"),
        ("node_settings_acs_bridges", []),
        ("node_settings_acs_bridges", ["0000:40:01.1", "c0:03.0", "10000:e0:06.0"]),
        ("node_settings_limits", ["root", "@bench", "*", "first.last", "@1000:"]),
        ("node_settings_sysctl", {"vm.max_map_count": "1048576", "kernel.numa_balancing": None}),
        ("node_settings_sysctl", {"vm.lowmem_reserve_ratio": "256 256 32", "net.ipv4.tcp_rmem": "4096 131072 6291456"}),
        ("node_settings_sysctl", {"kernel.core_pattern": "|/bin/false", "vm.overcommit_memory": True}),
        ("node_settings_sysctl", {"net.ipv4.conf.eth0/100.rp_filter": 1, "net/ipv4/ip_forward": 1}),
        ("node_settings_module_options", {}),
        ("node_settings_module_options", {"nvidia-current-uvm": {"uvm_disable_hmm": True}}),
        ("node_settings_module_options", {"nvidia": {"NVreg_RegistryDwords": '"RMa=1; RMb=2"', "NVreg_X": "0x1"}}),
        ("of_no_form", -1),
    ],
)
def test_a_value_that_may_be_meant_is_taken(name, value):
    assert settings.judge_value(name, value) == []


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"nccl_proof_timeout": 300, "nccl_proof_step_timeout": 300}, ""),
        ({"nccl_proof_timeout": 300, "nccl_proof_step_timeout": 301}, "nccl_proof_step_timeout is 301"),
        ({"nccl_proof_step_timeout": 301}, ""),
        ({"nvidia_driver_branch": 580, "nvidia_driver_version": "570.10"}, "nvidia_driver_version is '570.10'"),
        ({"nvidia_driver_branch": 580, "nvidia_driver_version": "580.105.08"}, ""),
        ({"nvidia_driver_branch": 580, "nvidia_driver_version": "1:580.95.05-1"}, ""),
        ({"nvidia_driver_branch": 58, "nvidia_driver_version": "580.95.05"}, "nvidia_driver_branch 58"),
        ({"nvidia_driver_branch": 580, "nvidia_driver_version": ""}, ""),
        ({"nvidia_driver_version": "570.10"}, ""),
    ],
)
def test_values_fit_each_other(given, seen):
    findings = settings.judge_together(given)
    assert len(findings) == bool(seen)
    assert all(finding.id == "settings.value" and seen in finding.seen for finding in findings)
