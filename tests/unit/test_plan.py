# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The plan: what the user may write, what is made of it, and what identifies it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import plan
from ansible_collections.inference.sglang.plugins.module_utils.flags import FlagTable
from ansible_collections.inference.sglang.plugins.plugin_utils import flag_tables

FLAGS = Path(__file__).parents[2] / "roles" / "sglang" / "files" / "flags" / "0.5.12.post1.json"
SETTINGS = plan.Settings(
    name="tiny",
    user="sglang",
    bin_path="/opt/sglang/bin",
    release_path="/opt/sglang/releases/r",
    cuda_home="/opt/sglang/toolkits/t/nvidia/cu13",
    jit_cache="/var/cache/sglang/r-t",
    cuda_arch="12.0f",
    model_path="/srv/model",
    served_name="tiny",
    host="127.0.0.1",
    port=30000,
    flags={"tp-size": 1, "pp-size": 8},
    environment={"NCCL_IB_DISABLE": "1"},
    start_timeout=1800,
    stop_timeout=600,
    restart_limit=5,
)
CHANGES = {
    "name": "small",
    "user": "engine",
    "bin_path": "/srv/sglang/bin",
    "release_path": "/opt/sglang/releases/s",
    "cuda_home": "/usr/local/cuda",
    "jit_cache": "/var/cache/sglang/s-t",
    "cuda_arch": "10.0a",
    "model_path": "/srv/models",
    "served_name": "small",
    "host": "::1",
    "port": 30001,
    "flags": {"tp-size": 2, "pp-size": 8},
    "environment": {"NCCL_IB_DISABLE": "0"},
    "start_timeout": 900,
    "stop_timeout": 60,
    "restart_limit": 3,
    "serving": {"cuda_graph_max_batch_size": 8},
    "keyed": True,
    "fetched": True,
}


@pytest.fixture(scope="module")
def table() -> FlagTable:
    return FlagTable.from_json(FLAGS.read_text(encoding="utf-8"))


def faults(table: FlagTable, **changes: object) -> list[str]:
    return [f"{finding.severity} {finding.id}" for finding in plan.check(replace(SETTINGS, **changes), table)]


def test_sound_settings_are_no_finding(table):
    assert faults(table) == []
    assert faults(table, environment={"A": 1, "B": 0.5, "C": "", "TRTLLM_BLOCK_PER_TOKEN": "1"}) == []


@pytest.mark.parametrize(
    ("flag", "setting"),
    [
        ("model-path", "sglang_server_model_path"),
        ("--model", "sglang_server_model_path"),
        ("served-model-name", "sglang_server_served_name"),
        ("--host", "sglang_server_host"),
        (" port", "sglang_server_port"),
    ],
)
def test_a_flag_of_the_plan_itself_is_refused(table, flag, setting):
    (finding,) = plan.check(replace(SETTINGS, flags={flag: "30000"}), table)
    assert (finding.id, finding.severity) == ("plan.own_flag", "error")
    assert finding.remedy == f"Use the setting {setting} instead"


def test_the_flags_are_judged(table):
    assert faults(table, flags={"pp-sise": 8}) == ["error flag.unknown"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "node1.example", ""])  # noqa: S104 (refused)
def test_a_host_that_others_reach_is_refused(table, host):
    assert faults(table, host=host) == ["error plan.exposed"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_is_not_exposed(table, host):
    assert faults(table, host=host) == []


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "DATABASE_PASSWORD"])
def test_a_secret_is_refused_and_not_repeated(table, name):
    (finding,) = plan.check(replace(SETTINGS, environment={name: "hunter2"}), table)
    assert (finding.id, finding.severity) == ("plan.secret", "error")
    assert name in finding.seen
    assert "hunter2" not in str(finding)


@pytest.mark.parametrize("value", [True, None, ["a"], {"a": 1}])
def test_a_value_that_would_reach_the_engine_in_pythons_spelling_is_refused(table, value):
    assert faults(table, environment={"NCCL_P2P_DISABLE": value}) == ["error plan.environment"]


def test_values_of_the_user_win(table):
    made = plan.make(replace(SETTINGS, environment={"CUDA_HOME": "/mine", "OMP_NUM_THREADS": 4}), table)
    assert made["environment"]["CUDA_HOME"] == "/mine"
    assert made["environment"]["OMP_NUM_THREADS"] == "4"
    assert made["environment"]["FLASHINFER_CUDA_ARCH_LIST"] == "12.0f"
    assert made["environment"]["PATH"].startswith("/opt/sglang/releases/r/bin:/opt/sglang/toolkits/t/nvidia/cu13/bin:")


def test_every_cache_lies_in_the_cache_folder(table):
    made = plan.make(SETTINGS, table)["environment"]
    folders = {name: value for name, value in made.items() if name.endswith(("_DIR", "_HOME", "_BASE", "_PATH"))}
    del folders["CUDA_HOME"]
    assert len(folders) >= 8
    assert {name: value for name, value in folders.items() if not value.startswith(SETTINGS.jit_cache)} == {}


def test_the_command_is_in_the_order_that_was_written(table):
    flags = {
        "trust-remote-code": True,
        "pp-size": 8,
        "cuda-graph-bs": [1, 2],
        "tp-size": 1,
        "disable-radix-cache": False,
    }
    made = plan.make(replace(SETTINGS, flags=flags), table)
    assert made["command"] == ["/opt/sglang/releases/r/bin/python", "-m", "sglang.launch_server"]
    assert made["arguments"] == [
        ["--model-path", "/srv/model"],
        ["--served-model-name", "tiny"],
        ["--host", "127.0.0.1"],
        ["--port", "30000"],
        ["--trust-remote-code"],
        ["--pp-size", "8"],
        ["--cuda-graph-bs", "1", "2"],
        ["--tp-size", "1"],
    ]


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:30000"), ("::1", "http://[::1]:30000"), ("localhost", "http://localhost:30000")],
)
def test_the_url_of_a_host(table, host, url):
    assert plan.make(replace(SETTINGS, host=host), table)["url"] == url


def test_the_digest_is_the_same_for_the_same(table):
    made = plan.make(SETTINGS, table)
    assert plan.make(replace(SETTINGS), table) == made
    assert made["environment"][plan.DIGEST_VARIABLE] == made["digest"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"name": ""}, "plan.name"),
        ({"name": "two words"}, "plan.name"),
        ({"name": "../ssh"}, "plan.name"),
        ({"name": "a\nb"}, "plan.name"),
        ({"name": "tiny\n"}, "plan.name"),
        ({"user": "root"}, "plan.user"),
        ({"user": "two words"}, "plan.user"),
        ({"release_path": "relative/path"}, "plan.path"),
        ({"cuda_home": "/opt/cuda home"}, "plan.path"),
        ({"model_path": "/srv/../root/model"}, "plan.path"),
        ({"model_path": "/srv/100%"}, "plan.path"),
        ({"jit_cache": "/srv/cache"}, "plan.cache"),
        ({"environment": {"A-B": "1"}}, "plan.environment"),
        ({"environment": {"A": "nul\0"}}, "plan.environment"),
        ({"user": ""}, "plan.user"),
        ({"port": 0}, "plan.range"),
        ({"port": 70000}, "plan.range"),
        ({"start_timeout": 0}, "plan.range"),
        ({"stop_timeout": -1}, "plan.range"),
        ({"restart_limit": 0}, "plan.range"),
    ],
)
def test_a_value_that_no_instance_can_have_is_refused(table, changes, fault):
    assert faults(table, **changes) == [f"error {fault}"]


@pytest.mark.parametrize("field", CHANGES)
def test_the_digest_changes_with_every_setting(table, field):
    assert set(CHANGES) == set(plan.Settings.__dataclass_fields__)
    changed = plan.make(replace(SETTINGS, **{field: CHANGES[field]}), table)
    assert changed["digest"] != plan.make(SETTINGS, table)["digest"]


def test_the_digest_changes_with_the_order_of_the_flags(table):
    turned = replace(SETTINGS, flags=dict(reversed(SETTINGS.flags.items())))
    assert plan.make(turned, table)["digest"] != plan.make(SETTINGS, table)["digest"]


def test_the_digest_cannot_be_given(table):
    made = plan.make(replace(SETTINGS, environment={plan.DIGEST_VARIABLE: "mine"}), table)
    assert made["environment"][plan.DIGEST_VARIABLE] == made["digest"]


@pytest.mark.parametrize(
    ("release", "flag"), [("0.5.12.post1", "--cuda-graph-max-bs"), ("0.5.23", "--cuda-graph-max-bs-decode")]
)
def test_case_c16_the_plan_for_each_release_has_its_own_flag(release, flag):
    given = replace(SETTINGS, serving={"cuda_graph_max_batch_size": 64})
    of_release = flag_tables.load(release)
    assert plan.check(given, of_release) == []
    arguments = plan.make(given, of_release)["arguments"]
    assert [argument for argument in arguments if "graph" in argument[0]] == [[flag, "64"]]


@pytest.mark.parametrize("release", flag_tables.history())
def test_case_c16_no_plan_turns_graphs_off_by_itself(release):
    arguments = plan.make(SETTINGS, flag_tables.history()[release])["arguments"]
    assert [argument for argument in arguments if "graph" in argument[0]] == []


def test_a_setting_and_its_flag_in_one_are_refused(table):
    (finding,) = plan.check(
        replace(SETTINGS, serving={"cuda_graph_max_batch_size": 8}, flags={"cuda-graph-max-bs": 16}), table
    )
    assert finding.id == "spelling.twice"
    assert finding.seen.startswith("sglang_server_cuda_graph_max_batch_size and the flag --cuda-graph-max-bs say")
