# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From settings, presets and what was read on a node to an instance's plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.inference.sglang.plugins.module_utils import gpus, plan, releases, spellings, units
from ansible_collections.inference.sglang.plugins.module_utils.findings import errors
from ansible_collections.inference.sglang.plugins.plugin_utils import instances, role_files

ROOT = Path(__file__).parents[2]
ROLE = ROOT / "roles" / "sglang_server"
DEFAULTS = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text(encoding="utf-8"))
RELEASE = "0.5.12.post1"
SETTINGS: dict[str, Any] = {
    **DEFAULTS,
    "sglang_release": RELEASE,
    "sglang_root": "/opt/sglang",
    "sglang_release_path": "/opt/sglang/releases/r",
    "sglang_patches": ["triton-layer-probe", "swa-start-layer", "api-key-log", "pp-abort", "activation-gcc12"],
    "sglang_user": "sglang",
    "sglang_server_name": "kimi",
    "sglang_server_model_path": "/srv/model",
    "sglang_server_served_name": "kimi",
    "cuda_toolkit_home": "/opt/sglang/toolkits/t",
    "flashinfer_cache_path": "/var/cache/sglang/r-t",
    "flashinfer_architectures": None,
    "cpu_engine_enabled": False,
    "cpu_engine_environment": {"OMP_NUM_THREADS": "1", "SGLANG_USE_CPU_ENGINE": "1"},
}
REST: dict[str, Any] = {"instances": [], "unit": {"name": "sglang-kimi.service", "running": False}}
PRESETS = role_files.shipped("presets")


def planned(
    release: str = RELEASE, facts: dict[str, Any] | None = None, *, key: str = "", **changes: Any
) -> instances.Planned:
    settings = SETTINGS | {f"sglang_server_{name}": value for name, value in changes.items()}
    return instances.planned(instances.wanted(settings, key=key), release, facts)


def flags(made: instances.Planned) -> dict[str, list[str]]:
    assert errors(made.findings) == []
    return {words[0]: words[1:] for words in made.content["arguments"]}


def ids(made: instances.Planned) -> list[str]:
    return [finding.id for finding in made.findings]


def node(count: int = 8, product: str = "NVIDIA RTX PRO 6000 Blackwell Server Edition", word: str = "NODE") -> Any:
    card = gpus.known(product) or gpus.Card(name="unknown", capability=120, memory=97887 << 20)
    read = gpus.NodeGpus(
        tuple(gpus.Gpu(index, product, card, card.memory) for index in range(count)),
        "580.126.09",
        {(a, b): word for a in range(count) for b in range(a + 1, count)},
    )
    return json.loads(json.dumps(read.to_dict()))


def model(name: str = "kimi-k2.5") -> dict[str, Any]:
    config = json.loads((ROLE / "files" / "shapes" / f"{name}.json").read_text(encoding="utf-8"))
    return {"config": config, "index": None, "quantization": None}


def test_settings_become_a_plan() -> None:
    made = planned(flags={"pp-size": 4}, environment={"OMP_NUM_THREADS": "2"})
    assert flags(made)["--pp-size"] == ["4"]
    assert made.content["environment"]["OMP_NUM_THREADS"] == "2"
    assert "SGLANG_USE_CPU_ENGINE" not in made.content["environment"]
    assert made.content["reasons"] == {
        "--pp-size": "sglang_server_flags",
        "OMP_NUM_THREADS": "sglang_server_environment",
    }


@pytest.mark.parametrize(
    ("source", "path", "manifest"),
    [
        ("huggingface", "/srv/model", "/srv/model/.model_weights/manifest.json"),
        ("folder", "/srv/model", "/srv/model/.model_weights/manifest.json"),
        ("url", "/srv/other", ""),
        ("path", "/srv/model", ""),
    ],
)
def test_a_model_that_is_fetched_is_served_once_it_is_whole(source: str, path: str, manifest: str) -> None:
    settings = SETTINGS | {"model_weights_source": source, "model_weights_path": path}
    asserted = instances.planned(instances.wanted(settings), RELEASE).content["asserted_paths"]
    assert asserted == ([manifest] if manifest else [])


def test_compilers_of_the_engine_are_bounded_by_the_node_s_memory_unless_the_user_does() -> None:
    facts = {"gpus": node(), "model": model(), **REST, "host": {"processors": 64, "memory": 122880 << 20}}
    made = planned(facts=facts, preset="kimi-k2-tp8")
    assert made.content["environment"]["MAX_JOBS"] == "13"
    assert made.content["reasons"]["MAX_JOBS"] == instances.COMPILERS
    own = planned(facts=facts, preset="kimi-k2-tp8", environment={"MAX_JOBS": 3})
    assert own.content["environment"]["MAX_JOBS"] == "3"
    assert own.content["reasons"]["MAX_JOBS"] == "sglang_server_environment"
    without = planned(facts={**facts, "gpus": None}, preset="kimi-k2-tp8")
    assert "MAX_JOBS" not in without.content["environment"]


def test_the_cpu_engine_brings_its_environment_and_the_user_wins() -> None:
    settings = SETTINGS | {"cpu_engine_enabled": True, "sglang_server_environment": {"OMP_NUM_THREADS": "2"}}
    made = instances.planned(instances.wanted(settings), RELEASE, {"model": model(), "gpus": None, **REST})
    assert made.content["environment"]["SGLANG_USE_CPU_ENGINE"] == "1"
    assert made.content["environment"]["OMP_NUM_THREADS"] == "2"
    assert "--tp-size" not in flags(made)


def test_settings_that_make_no_plan_are_refused_with_every_finding() -> None:
    made = planned(host="192.0.2.7", flags={"pp-sise": 4})
    assert {"flag.unknown", "plan.exposed"} <= set(ids(made))
    assert made.content == {}


def test_a_key_opens_other_addresses_and_stands_nowhere_in_the_plan() -> None:
    made = planned(host="0.0.0.0", key="hunter2")  # noqa: S104 # what is tested
    assert flags(made)["--config"] == ["/etc/sglang/kimi/secrets.yml"]
    assert "hunter2" not in json.dumps(made.content)


@pytest.mark.parametrize(
    ("key", "changes", "fault"),
    [
        ("two words", {}, "credentials.key"),
        ("-dash", {}, "credentials.key"),
        ("sk-1", {"flags": {"config": "/srv/mine.yml"}}, "plan.own_flag"),
    ],
)
def test_a_key_that_could_not_work_is_told_and_not_repeated(key: str, changes: dict[str, Any], fault: str) -> None:
    made = planned(key=key, **changes)
    assert [finding.id for finding in errors(made.findings)] == [fault]
    assert key not in json.dumps([finding.seen + finding.remedy for finding in made.findings])


def test_a_key_needs_the_patch_that_keeps_it_out_of_the_log() -> None:
    settings = SETTINGS | {"sglang_patches": ["triton-layer-probe"]}
    made = instances.planned(instances.wanted(settings, key="sk-1"), RELEASE)
    assert [finding.id for finding in errors(made.findings)] == ["credentials.log"]


@pytest.mark.parametrize("release", releases.RELEASES)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_renders_for_every_release_in_its_own_spelling(preset: str, release: str) -> None:
    made = planned(release, preset=preset)
    given = flags(made)
    tensor, pipeline, expert = {
        "kimi-k2-pp8": ("1", "8", None),
        "kimi-k2-ep8": ("8", "1", "8"),
        "kimi-k2-tp8": ("8", "1", None),
        "story-pp8": ("1", "8", None),
    }[preset]
    assert given["--tp-size"] == [tensor]
    assert given["--pp-size"] == [pipeline]
    assert given.get("--ep-size", [None]) == [expert]
    graph = "--cuda-graph-max-bs" if release < "0.5.14" else "--cuda-graph-max-bs-decode"
    assert (graph in given) == (preset != "story-pp8")
    assert not any("disable" in flag for flag in given)
    warned = [finding.id for finding in made.findings if finding.severity == "warning"]
    story = ["launch.graph_batch", "launch.async_depth", "launch.packed_slot", "launch.running_requests"]
    assert warned == (story if preset == "story-pp8" else [])


def test_expert_parallel_on_pcie_is_an_all_reduce() -> None:
    given = flags(planned(preset="kimi-k2-ep8"))
    assert (given["--ep-size"], given["--moe-a2a-backend"]) == (["8"], ["none"])


def test_the_storys_preset_is_its_unit_but_for_what_is_wrong_in_it() -> None:
    made = planned(preset="story-pp8")
    text = (Path(__file__).parent / "fixtures" / "story_repaired.service").read_text(encoding="utf-8")
    unit = units.parse_unit(text)
    words = unit.argv[unit.argv.index("--model-path") :]
    own = {"--model-path", "--served-model-name", "--host", "--port"}
    story: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            story[word] = []
        else:
            story[list(story)[-1]].append(word)
    given = flags(made)
    assert {flag: value for flag, value in given.items() if flag not in own} == {
        flag: value for flag, value in story.items() if flag not in own
    }
    variables = {name: made.content["environment"][name] for name in unit.environment}
    assert variables == {**unit.environment, "NCCL_P2P_LEVEL": "SYS"}
    assert given["--host"] == ["127.0.0.1"]


def test_what_the_user_sets_wins_over_a_preset() -> None:
    made = planned(preset="kimi-k2-pp8", context_length=16384, flags={"grammar-backend": "xgrammar"})
    given = flags(made)
    assert given["--context-length"] == ["16384"]
    assert given["--grammar-backend"] == ["xgrammar"]
    reasons = made.content["reasons"]
    assert reasons["--context-length"] == "sglang_server_context_length"
    assert reasons["--grammar-backend"] == "sglang_server_flags"
    assert reasons["--pp-size"] == "preset kimi-k2-pp8"


def test_a_preset_of_ones_own_lies_beside_the_inventory(tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text(
        "pipeline_parallel: 4\nflags: {schedule-conservativeness: 0.8}\n", encoding="utf-8"
    )
    settings = SETTINGS | {"sglang_server_preset": "mine.yml", "sglang_server_flags": {"log-level": "info"}}
    made = instances.planned(instances.wanted(settings, folders=(str(tmp_path),)), RELEASE)
    given = flags(made)
    assert (given["--pp-size"], given["--schedule-conservativeness"], given["--log-level"]) == (
        ["4"],
        ["0.8"],
        ["info"],
    )
    assert made.content["reasons"]["--schedule-conservativeness"] == "preset mine.yml"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("pipeline_paralel: 4", "preset.unknown"),
        ("served_name: other", "preset.unknown"),
        ("stop_timeout: 30", "preset.unknown"),
        ("1: 2", "preset.unknown"),
        ("- 1", "preset.type"),
        ("flags: [1]", "settings.type"),
        ("gpus: 3", "settings.type"),
        ("start_timeout: x", "settings.type"),
        ("concurrency: .inf", "settings.type"),
        ("a: {", "preset.unreadable"),
        (None, "preset.missing"),
    ],
)
def test_a_preset_that_cannot_be_meant(tmp_path: Path, content: str | None, fault: str) -> None:
    if content is not None:
        (tmp_path / "mine.yml").write_text(content, encoding="utf-8")
    settings = SETTINGS | {"sglang_server_preset": "mine.yml"}
    assert fault in ids(instances.planned(instances.wanted(settings, folders=(str(tmp_path),)), RELEASE))


@pytest.mark.parametrize(
    ("content", "flag", "there"),
    [
        ("trust_remote_code: 'no'", "--trust-remote-code", False),
        ("trust_remote_code: 'yes'", "--trust-remote-code", True),
        ("cuda_graphs: 'false'", "--disable-cuda-graph", True),
        ("tensor_parallel: '2'", "--tp-size", True),
    ],
)
def test_a_presets_values_are_read_like_variables(tmp_path: Path, content: str, flag: str, there: bool) -> None:
    (tmp_path / "mine.yml").write_text(content, encoding="utf-8")
    settings = SETTINGS | {"sglang_server_preset": "mine.yml"}
    made = instances.planned(instances.wanted(settings, folders=(str(tmp_path),)), RELEASE)
    assert (flag in flags(made)) == there


def test_a_presets_box_stands_in_for_a_node_and_is_not_held_against_it() -> None:
    facts = {
        "gpus": node(4, "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"),
        "model": model("llama-3.1-8b"),
        **REST,
    }
    made = planned(facts=facts, preset="kimi-k2-tp8", tensor_parallel=4)
    assert errors(made.findings) == []
    assert "gpus.preset" in ids(made)
    assert made.content["gpus"] == "4 x rtx_pro_6000_workstation over pcie"
    assert "gpus.declared" in ids(planned(facts=facts, gpu_model="rtx_pro_6000_server", tensor_parallel=4))


def test_the_declared_link_is_what_layouts_are_judged_by() -> None:
    box = {"gpu_model": "h200", "gpu_count": 8, "model_shape": "deepseek-v3", "tensor_parallel": 8}
    slow, fast = planned("0.5.23", gpu_link="pcie", **box), planned("0.5.23", gpu_link="nvlink", **box)
    one, other = (made.content["expected"]["single"]["tokens_per_second"] for made in (slow, fast))
    assert one < other


def test_a_quantisation_is_the_same_as_setting_and_as_flag() -> None:
    box = {"gpu_model": "h100", "gpu_count": 1, "model_shape": "llama-3.1-8b"}
    as_flag = planned("0.5.23", flags={"quantization": "fp8"}, **box)
    as_setting = planned("0.5.23", quantization="fp8", **box)
    assert as_flag.content["memory"] == as_setting.content["memory"]


def test_a_plan_keeps_its_layout_until_what_it_came_from_changes() -> None:
    facts = {"gpus": node(), "model": model(), **REST}
    first = planned(facts=facts)
    there = {
        "inputs": first.content["inputs"],
        "layout": {"tensor": 4, "pipeline": 2, "expert": 1, "attention_data": 1},
    }
    again = planned(facts={**facts, "chosen": there})
    assert again.content["layout"]["tensor"] == 4
    assert again.content["inputs"] == first.content["inputs"]
    changed = planned(facts={**facts, "chosen": there}, concurrency=8)
    assert changed.content["layout"]["tensor"] == 8
    broken = planned(facts={**facts, "chosen": {**there, "layout": {"tensor": "four"}}})
    assert broken.content["layout"] == first.content["layout"]


def test_a_model_with_code_of_its_own_is_told_unless_it_may_run() -> None:
    facts = {"gpus": node(), "model": model(), **REST}
    facts["model"]["config"]["auto_map"] = {"AutoConfig": "configuration_kimi.KimiConfig"}
    assert "model.own_code" in ids(planned(facts=facts))
    assert "model.own_code" not in ids(planned(facts=facts, trust_remote_code=True))


def test_an_error_that_is_accepted_is_a_warning() -> None:
    given = {"gpu_model": "h200", "gpu_count": 8, "model_shape": "deepseek-v3", "tensor_parallel": 8}
    given["attention_backend"] = "trtllm_mla"
    assert [finding.id for finding in errors(planned("0.5.23", **given).findings)] == ["launch.attention_hardware"]
    made = planned("0.5.23", **given, accepted=["launch.attention_hardware"])
    assert flags(made)["--attention-backend"] == ["trtllm_mla"]
    assert [
        found.seen.startswith("accepted: ") for found in made.findings if found.id == "launch.attention_hardware"
    ] == [True]
    assert "plan.accepted" in ids(planned(accepted=["plan.exposed"]))
    facts = {"gpus": node(), "model": model(), **REST}
    assert errors(planned(facts=facts, gpu_model="h200", tensor_parallel=8, accepted=["gpus.declared"]).findings) == []


def test_visible_devices_of_the_user_select_the_gpus() -> None:
    facts = {"gpus": node(8), "model": model("llama-3.1-8b"), **REST}
    made = planned(facts=facts, environment={"CUDA_VISIBLE_DEVICES": "4,5,6,7"})
    assert made.content["layout"]["gpus"] == 4


def test_a_model_that_cannot_be_sized_is_no_error_where_layout_and_fraction_are_given() -> None:
    sparse = model("deepseek-v3")
    sparse["config"] = sparse["config"] | {"architectures": ["DeepseekV32ForCausalLM"], "index_topk": 2048}
    facts = {"gpus": node(8, "NVIDIA B200", "NV18"), "model": sparse, **REST}
    assert "model.unsupported" in [finding.id for finding in errors(planned("0.5.23", facts).findings)]
    made = planned("0.5.23", facts, tensor_parallel=8, memory_fraction=0.85)
    assert errors(made.findings) == []
    assert "model.unsupported" in ids(made)
    assert errors(planned("0.5.23", facts, tuned=False).findings) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"preset": "kimi-k3"}, "preset.unknown"),
        ({"model_shape": "kimi-k3"}, "shape.unknown"),
        ({"gpu_model": "rtx"}, "gpus.unknown_model"),
        ({"gpus": [0, 0]}, "gpus.numbers"),
        ({"gpus": [-1]}, "gpus.numbers"),
        ({"gpus": [8], "gpu_model": "h200", "gpu_count": 8}, "gpus.numbers"),
        ({"concurrency": 0}, "plan.range"),
        ({"gpu_count": 10**9, "gpu_model": "h200", "model_shape": "llama-3.1-8b"}, "plan.range"),
        ({"read_rate": -1.0}, "plan.range"),
        ({"concurrency": float("inf")}, "plan.range"),
        ({"most_ttft": float("nan")}, "plan.range"),
        ({"memory_fraction": 1.5}, "plan.range"),
        ({"memory_fraction": float("nan")}, "plan.range"),
        ({"objective": "fast"}, "plan.choice"),
        ({"nccl_p2p_level": "5"}, "plan.choice"),
    ],
)
def test_a_setting_that_means_nothing_is_told(changes: dict[str, Any], fault: str) -> None:
    made = planned(**changes)
    assert fault in [finding.id for finding in errors(made.findings)]


def test_what_was_read_on_the_node_is_planned_with() -> None:
    made = planned(facts={"gpus": node(), "model": model(), **REST})
    assert made.content["gpus"] == "8 x rtx_pro_6000_server over pcie"
    assert flags(made)["--tp-size"] == ["8"]
    assert made.content["environment"]["NCCL_P2P_LEVEL"] == "PHB"


def test_declared_and_read_give_one_plan() -> None:
    """So that what plan.yml shows is what will run."""
    declared = {"gpu_model": "rtx_pro_6000_server", "gpu_count": 8, "model_shape": "kimi-k2.5", "nccl_p2p_level": "SYS"}
    alone = planned(**declared)
    read = planned(facts={"gpus": node(), "model": model(), **REST}, **declared)
    assert alone.content["digest"] == read.content["digest"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"gpu_model": "h200"}, "gpus.declared"),
        ({"gpu_count": 16}, "gpus.declared"),
        ({"model_shape": "deepseek-v3"}, "model.declared"),
        ({"gpus": [7, 8]}, "gpus.missing"),
    ],
)
def test_settings_that_describe_another_node_are_told(changes: dict[str, Any], fault: str) -> None:
    made = planned(facts={"gpus": node(), "model": model(), **REST}, **changes)
    assert fault in [finding.id for finding in errors(made.findings)]


@pytest.mark.parametrize(
    ("given", "card", "compiled"),
    [
        (None, "rtx_pro_6000_server", "12.0f"),
        (None, "b200", "10.0a"),
        (None, "h200", "9.0a"),
        (None, None, "12.0f"),
        ("12.0f", "rtx_pro_6000_server", "12.0f"),
        ("9.0a 10.0a", "b200", "9.0a 10.0a"),
        ("10.0f", "b300", "10.0f"),
    ],
)
def test_kernels_are_compiled_for_the_nodes_gpus(given: str | None, card: str | None, compiled: str) -> None:
    settings = SETTINGS | {
        "flashinfer_architectures": given,
        "sglang_server_gpu_model": card,
        "sglang_server_gpu_count": 8,
    }
    made = instances.planned(instances.wanted(settings), RELEASE)
    assert made.content["environment"]["FLASHINFER_CUDA_ARCH_LIST"] == compiled


@pytest.mark.parametrize(("given", "card"), [("12.0f", "h200"), ("10.0a", "b300"), ("9.0a", "rtx_pro_6000_server")])
def test_kernels_for_other_gpus_are_told(given: str, card: str) -> None:
    settings = SETTINGS | {
        "flashinfer_architectures": given,
        "sglang_server_gpu_model": card,
        "sglang_server_gpu_count": 8,
    }
    assert "plan.architecture" in ids(instances.planned(instances.wanted(settings), RELEASE))


def test_two_instances_of_a_node_have_gpus_of_their_own() -> None:
    facts = {"gpus": node(), "model": model("llama-3.1-8b"), **REST}
    facts["instances"] = [{"name": "other", "gpus": [0, 1]}]
    assert "gpus.shared" in ids(planned(facts=facts, gpus=[1, 2]))
    made = planned(facts=facts, gpus=[2, 3])
    assert made.content["environment"]["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert made.content["environment"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert made.content["layout"]["gpus"] == 2


def test_an_unknown_product_is_taken_for_the_card_it_is_said_to_be_like() -> None:
    facts = {"gpus": node(product="NVIDIA RTX PRO 9000"), "model": model(), **REST}
    alone = planned(facts=facts)
    assert "gpus.unknown" in ids(alone)
    assert alone.content["expected"] == {}
    assert planned(facts=facts, gpu_model="rtx_pro_6000_server").content["expected"] != {}


@pytest.mark.parametrize(
    ("rate", "least"),
    [(900.0, 1980), (6000.0, 1800), (None, 1800), (1e-6, 86400)],
    ids=["slow", "fast", "not measured", "hopeless"],
)
def test_case_c20_the_start_timeout_follows_the_weights(rate: float | None, least: int) -> None:
    made = planned(preset="kimi-k2-pp8", read_rate=rate)
    assert made.content["start_timeout"] >= least
    assert made.content["start_timeout"] <= least * 1.01


def test_every_settings_variable_has_a_default_and_is_read() -> None:
    """A setting of the core without a variable could not be set; a variable that nothing reads would be ignored."""
    known = {name.removeprefix(plan.PREFIX) for name in DEFAULTS}
    source = (ROOT / "plugins" / "plugin_utils" / "instances.py").read_text(encoding="utf-8")
    for name in known - set(spellings.SETTINGS) - set(instances._OWN):
        assert f'"{name}"' in source, name
