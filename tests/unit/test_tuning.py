# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the plan chooses, and that it leaves alone what is given."""

from __future__ import annotations

import itertools
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import shapes
from ansible_collections.inference.sglang.plugins.module_utils import models, releases, spellings, tuning
from ansible_collections.inference.sglang.plugins.module_utils.estimates import Estimate, roofline
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, errors
from ansible_collections.inference.sglang.plugins.module_utils.gpus import CARDS, Card
from ansible_collections.inference.sglang.plugins.module_utils.memory import Layout
from ansible_collections.inference.sglang.plugins.module_utils.tuning import Hardware, Tuning, Wishes
from ansible_collections.inference.sglang.plugins.plugin_utils import flag_tables

SHAPES = Path(__file__).parents[2] / "roles" / "sglang_server" / "files" / "shapes"
DATA = Path(__file__).parent / "data" / "measurements"
PATCHES = frozenset({"triton-layer-probe", "swa-start-layer", "pp-abort"})
BOX = Hardware(CARDS["rtx_pro_6000_server"], 8, "pcie", "SYS")
H200 = Hardware(CARDS["h200"], 2, "nvlink", "NVL")
B200 = Hardware(CARDS["b200"], 8, "nvlink", "NVL")
OLD, NEW = "0.5.12.post1", "0.5.23"


def shape(name: str, **changes: Any) -> models.Shape:
    config = json.loads((SHAPES / f"{name}.json").read_text(encoding="utf-8"))
    return models.read(config | changes)[0]


KIMI, DEEPSEEK, LLAMA = shape("kimi-k2.5"), shape("deepseek-v3"), shape("llama-3.1-8b")


def tune(
    hardware: Hardware | None = BOX,
    model: models.Shape | None = KIMI,
    release: str = OLD,
    ask: Any = None,
    **wishes: Any,
) -> Tuning:
    return tuning.tune(Wishes(**wishes), flag_tables.load(release), hardware, model, patches=PATCHES, ask=ask)


def sizes(tuned: Tuning) -> tuple[int, int, int, int]:
    layout = tuned.chosen.layout
    return layout.tensor, layout.pipeline, layout.expert, layout.attention_data


def test_the_storys_box_is_served_by_tensor_parallelism() -> None:
    """facts/planner: TP8 before EP8 before PP8 for one request, and TP8 first for eight."""
    for objective, concurrency in (("interactive", None), ("throughput", 8), ("throughput", 64)):
        tuned = tune(objective=objective, concurrency=concurrency)
        assert errors(tuned.findings) == []
        assert sizes(tuned) == (8, 1, 1, 1)
        assert {str(candidate.layout) for candidate in tuned.candidates} >= {
            "tensor 8",
            "tensor 8, expert 8",
            "tensor 1, pipeline 8",
        }
        pipeline = next(candidate for candidate in tuned.candidates if candidate.layout.pipeline == 8)
        assert pipeline.single
        assert pipeline.single.tokens_per_second < 55


def test_every_choice_has_a_reason() -> None:
    for tuned in (tune(), tune(serving={"pipeline_parallel": 8}), tune(B200, DEEPSEEK, NEW)):
        chosen = tuned.chosen
        assert set(chosen.serving) - {"pipeline_parallel"} <= set(chosen.reasons)
        assert set(chosen.environment) <= set(chosen.reasons)
        assert all(chosen.reasons.values())


@pytest.mark.parametrize(
    ("wishes", "depth", "micro", "running"),
    [
        ({"concurrency": 64}, 1, 8, 72),
        ({"concurrency": 8}, 0, 1, 8),
        ({"concurrency": 9}, 1, 1, 9),
        ({"concurrency": 64, "objective": "interactive"}, 0, 8, 64),
        ({"concurrency": 64, "serving": {"async_depth": 2}}, 2, 7, 70),
        ({"concurrency": 64, "serving": {"micro_batch_size": 16}}, 1, 16, 144),
        ({"concurrency": 64, "flags": {"pp-async-batch-depth": 0}}, 0, 8, 64),
        ({"serving": {"max_running_requests": 32}}, 1, 4, 32),
    ],
)
def test_a_pipelines_slots(wishes: dict[str, Any], depth: int, micro: int, running: int) -> None:
    """Depth 0 for interactive use, 1 for throughput; micro-batch from the concurrency; the slots can be filled."""
    given = {**wishes, "serving": {"pipeline_parallel": 8, **wishes.get("serving", {})}}
    launch = tune(**given).chosen.launch
    assert (launch.depth, launch.micro_batch, launch.running) == (depth, micro, running)
    assert launch.graph_batch == micro
    assert launch.graphs


def test_case_c25_nothing_of_the_planned_pipeline_is_worth_a_finding() -> None:
    tuned = tune(serving={"pipeline_parallel": 8}, concurrency=64)
    assert [finding.id for finding in tuned.findings if finding.severity != "info"] == []


def test_a_layout_that_is_far_from_the_fastest_is_told() -> None:
    (finding,) = [found for found in tune(serving={"pipeline_parallel": 8}).findings if found.id == "tuning.faster"]
    assert finding.seen.startswith("tensor 8")
    assert "tuning.faster" not in [found.id for found in tune(serving={"tensor_parallel": 8}).findings]


def test_what_is_given_is_left_alone_and_planned_around() -> None:
    tuned = tune(
        serving={"tensor_parallel": 8, "memory_fraction": 0.9},
        flags={"max-running-requests": 16},
        environment={"NCCL_P2P_LEVEL": "PHB"},
        concurrency=64,
    )
    launch = tuned.chosen.launch
    assert launch.value("--mem-fraction-static") == 0.9
    assert (launch.running, launch.graph_batch) == (16, 16)
    assert tuned.chosen.environment["NCCL_P2P_LEVEL"] == "PHB"
    assert "max_running_requests" not in tuned.chosen.serving


@pytest.mark.parametrize("name", [name for name in spellings.SETTINGS if name not in ("cuda_graphs",)])
@pytest.mark.parametrize("release", [OLD, NEW])
def test_no_setting_and_its_flag_are_both_written(name: str, release: str) -> None:
    """Whichever flag a user gives, in whichever spelling: the plan does not decide the setting, too."""
    table = flag_tables.load(release)
    for spelling in spellings.SETTINGS[name].spellings:
        given = {
            flag: True if table[flag].kind == "switch" else (table[flag].choices or ("8",))[0]
            for flag in spelling
            if flag in table and not table[flag].refused
        }
        # Of the two that are data-parallel attention, one alone means something else.
        for flags in [given] if len(spelling) > 1 else [{flag: value} for flag, value in given.items()]:
            if len(flags) == len(spelling):
                assert name not in tune(release=release, flags=flags).chosen.serving


def test_without_tuning_nothing_is_added_and_all_is_judged() -> None:
    tuned = tune(tuned=False, serving={"pipeline_parallel": 8, "async_depth": 8, "max_running_requests": 64})
    assert set(tuned.chosen.serving) == {"pipeline_parallel", "async_depth", "max_running_requests"}
    assert "launch.async_depth" in [finding.id for finding in tuned.findings]


@pytest.mark.parametrize(("hardware", "model"), [(None, KIMI), (BOX, None), (None, None)])
def test_nothing_is_planned_from_nothing_and_that_is_told(
    hardware: Hardware | None, model: models.Shape | None
) -> None:
    tuned = tune(hardware, model, serving={"tensor_parallel": 8})
    assert set(tuned.chosen.serving) == {"tensor_parallel"}
    (finding,) = [finding for finding in tuned.findings if finding.id == "tuning.unknown"]
    assert ("the GPUs" in finding.seen) == (hardware is None)
    assert ("shape" in finding.seen) == (model is None)
    assert tune(None, None, flags={"device": "cpu"}).findings == ()


def test_settings_that_are_variables_hold_without_any_knowledge() -> None:
    tuned = tune(None, None, gpus=(2, 3), nccl_p2p_level="SYS", nccl_algo="Ring", nccl_ib_disable=False)
    assert tuned.chosen.environment == {
        "CUDA_VISIBLE_DEVICES": "2,3",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NCCL_P2P_LEVEL": "SYS",
        "NCCL_ALGO": "Ring",
        "NCCL_IB_DISABLE": "0",
    }


@pytest.mark.parametrize("hardware", [None, BOX])
def test_case_c18_without_direct_access_there_is_no_level_for_it(hardware: Hardware | None) -> None:
    chosen = tune(hardware, None, serving={"p2p_fallback": True}).chosen
    assert chosen.environment["NCCL_P2P_DISABLE"] == "1"
    assert "rtx6kpro#15" in chosen.reasons["NCCL_P2P_DISABLE"]
    assert chosen.reasons["p2p_fallback"]
    assert "NCCL_P2P_LEVEL" not in chosen.environment
    assert chosen.launch.switch("--disable-custom-all-reduce")
    given = tune(hardware, None, serving={"p2p_fallback": True}, environment={"NCCL_P2P_DISABLE": "0"}).chosen
    assert given.environment["NCCL_P2P_DISABLE"] == "0"
    assert "NCCL_P2P_DISABLE" not in tune(hardware, None).chosen.environment


@pytest.mark.parametrize(
    ("hardware", "model", "release", "backend"),
    [
        (BOX, KIMI, OLD, "triton"),
        (BOX, DEEPSEEK, NEW, "triton"),
        (BOX, LLAMA, NEW, None),
        (B200, DEEPSEEK, NEW, None),
        (H200, LLAMA, OLD, None),
    ],
)
def test_case_c15_attention_is_named_where_sglangs_choice_could_fail(
    hardware: Hardware, model: models.Shape, release: str, backend: str | None
) -> None:
    assert tune(hardware, model, release).chosen.serving.get("attention_backend") == backend


@pytest.mark.parametrize("flag", ["attention-backend", "prefill-attention-backend"])
def test_case_c15_datacentre_kernels_are_refused_on_sm120(flag: str) -> None:
    (finding,) = errors(tune(flags={flag: "trtllm_mla"}, serving={"tensor_parallel": 8}).findings)
    assert finding.id == "launch.attention_hardware"
    assert f"--{flag}" in finding.seen
    assert errors(tune(B200, DEEPSEEK, flags={"attention-backend": "trtllm_mla"}).findings) == []


@pytest.mark.parametrize(
    ("release", "hardware", "wishes", "present"),
    [
        (OLD, BOX, {}, {"SGLANG_ENABLE_JIT_DEEPGEMM", "NCCL_GRAPH_REGISTER", "NCCL_P2P_LEVEL"}),
        ("0.5.13", BOX, {}, {"NCCL_GRAPH_REGISTER", "NCCL_P2P_LEVEL"}),
        (NEW, BOX, {}, {"NCCL_P2P_LEVEL"}),
        (OLD, H200, {}, {"NCCL_GRAPH_REGISTER"}),
        (OLD, BOX, {"serving": {"pipeline_parallel": 8}}, {"SGLANG_ENABLE_JIT_DEEPGEMM", "NCCL_P2P_LEVEL"}),
        (OLD, replace(BOX, level=""), {"serving": {"pipeline_parallel": 8}}, {"SGLANG_ENABLE_JIT_DEEPGEMM"}),
        (OLD, H200, {"serving": {"tensor_parallel": 2, "cuda_graphs": False}}, set()),
    ],
)
def test_environment_for_what_is_there(
    release: str, hardware: Hardware, wishes: dict[str, Any], present: set[str]
) -> None:
    model = KIMI if hardware.count == 8 else LLAMA
    found = set(tune(hardware, model, release, **wishes).chosen.environment)
    assert found - {"SGLANG_PP_LAYER_PARTITION"} == present


def test_the_level_is_the_word_of_the_nodes_topology() -> None:
    for level in ("PIX", "PXB", "PHB", "SYS"):
        assert tune(replace(BOX, level=level)).chosen.environment["NCCL_P2P_LEVEL"] == level


def test_uneven_stages_are_evened() -> None:
    tuned = tune(serving={"pipeline_parallel": 8})
    partition = tuned.chosen.environment["SGLANG_PP_LAYER_PARTITION"]
    assert sum(map(int, partition.split(","))) == 61
    assert tuned.chosen.layout.partition == tuple(map(int, partition.split(",")))
    kept = tune(serving={"pipeline_parallel": 8}, environment={"SGLANG_PP_LAYER_PARTITION": "8,8,8,8,8,7,7,7"})
    assert kept.chosen.layout.partition == (8, 8, 8, 8, 8, 7, 7, 7)


@pytest.mark.parametrize("release", releases.RELEASES)
def test_chosen_flags_are_right_in_every_release(release: str) -> None:
    for hardware, model in ((BOX, KIMI), (B200, DEEPSEEK), (H200, LLAMA)):
        for objective in tuning.CONCURRENCY:
            tuned = tune(hardware, model, release, objective=objective)
            assert [finding for finding in tuned.findings if finding.severity != "info"] == []
            assert tuned.chosen.able


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    (finding,) = errors(tune(replace(BOX, count=4)).findings)
    assert finding.id == "memory.does_not_fit"
    assert "stage PP" in finding.seen
    assert "are missing" in finding.seen
    assert "on 8 GPUs" in finding.remedy


def test_a_promise_of_whole_contexts_is_kept_or_refused() -> None:
    promised = {"concurrency": 8, "tokens_per_request": 32768, "serving": {"tensor_parallel": 8}}
    tuned = tune(**promised)
    assert errors(tuned.findings) or (tuned.chosen.budget and tuned.chosen.budget.tokens >= 8 * 32768)
    relaxed = tune(concurrency=8, serving={"tensor_parallel": 8})
    assert relaxed.chosen.budget
    assert relaxed.chosen.budget.promised == 32768


def test_a_context_longer_than_the_models() -> None:
    given: dict[str, Any] = {"serving": {"context_length": 300000, "pipeline_parallel": 8}}
    assert [finding.id for finding in errors(tune(**given).findings)] == ["tuning.context"]
    allowed = tune(**given, environment={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"})
    assert errors(allowed.findings) == []


def test_limits_choose_and_are_told_where_none_keeps_them() -> None:
    free = tune(concurrency=64)
    assert free.chosen.loaded
    hopeless = tune(concurrency=64, most_tpot=1.0, most_ttft=0.001)
    assert [finding.id for finding in hopeless.findings] == ["tuning.most_ttft", "tuning.most_tpot"]
    times = {candidate.layout: candidate.loaded.time_per_token for candidate in free.candidates if candidate.loaded}
    quickest = min(times, key=lambda layout: times[layout])
    kept = tune(concurrency=64, most_tpot=times[quickest] * 1000 + 0.01)
    assert kept.chosen.loaded
    assert kept.chosen.loaded.time_per_token <= times[quickest] + 1e-5
    assert kept.findings == ()


def test_a_plainer_layout_is_taken_where_another_is_hardly_faster() -> None:
    tuned = tune(concurrency=64)
    speeds = {str(candidate.layout): tuning._judged(candidate, Wishes()) for candidate in tuned.candidates}
    chosen = speeds[str(tuned.chosen.layout)]
    assert chosen
    best = max(estimate.tokens_per_second for estimate in speeds.values() if estimate)
    assert chosen.tokens_per_second >= best * (1 - tuning.ALIKE)


def test_a_better_estimator_decides_and_one_that_declines_does_not() -> None:
    def prefers(questions: Any) -> tuple[list[Estimate], list[Finding]]:
        estimates = []
        for layout, work in questions:
            estimate = roofline(KIMI, layout, BOX.card, work)
            factor = 10 if layout.pipeline > 1 else 1
            estimates.append(
                replace(estimate, tokens_per_second=estimate.tokens_per_second * factor, source="other 1.0")
            )
        return estimates, []

    chosen = tune(ask=prefers, concurrency=8).chosen
    assert chosen.layout.pipeline > 1
    assert "(other 1.0)" in " ".join(chosen.reasons.values())
    why = Finding("estimate.no_data", "info", "seen", "remedy")
    declined = tune(ask=lambda questions: ([], [why]), concurrency=8)
    assert declined.chosen.layout == tune(concurrency=8).chosen.layout
    assert "(roofline)" in " ".join(declined.chosen.reasons.values())
    assert declined.findings == (why,)


@pytest.mark.parametrize("concurrency", [1, 8, 32, 64])
def test_the_plan_for_two_h200_is_within_a_tenth_of_the_best_measured_row(concurrency: int) -> None:
    """docs/measurements.md, "Layouts on two GPUs": the layout that the plan chooses is one of those measured there."""
    measured = json.loads((DATA / "h200-x2-2026-11-30.json").read_text(encoding="utf-8"))
    rows = {
        Layout(row["tensor_parallel"], row["pipeline_parallel"], row["expert_parallel"]): statistics.median(
            point["tokens_per_second"]
        )
        for row in measured["rows"]
        for point in row["points"]
        if point["concurrency"] == concurrency
    }
    model = models.read(shapes.config("small-mla-moe"))[0]
    chosen = tune(H200, model, concurrency=concurrency).chosen.layout
    assert rows[replace(chosen, partition=())] >= 0.9 * max(rows.values())


def test_the_planned_kv_cache_is_the_one_that_sglang_made_on_two_h200() -> None:
    """docs/measurements.md: the plan's own flags, started as they are."""
    measured = json.loads((DATA / "h200-x2-plan-2026-11-30.json").read_text(encoding="utf-8"))
    (row,) = measured["rows"]
    model = models.read(measured["model"])[0]
    chosen = tune(H200, model, concurrency=64, serving={"pipeline_parallel": 2, "context_length": 8192}).chosen
    assert chosen.budget
    fraction = row["memory"]["mem_fraction_static"]
    assert chosen.budget.tokens_at(fraction) == pytest.approx(row["memory"]["kv_tokens"], rel=0.02)
    launch, flags = chosen.launch, dict(itertools.pairwise(row["flags"]))
    assert str(launch.micro_batch) == flags["--pp-max-micro-batch-size"]
    assert str(launch.running) == flags["--max-running-requests"]
    assert str(launch.depth) == flags["--pp-async-batch-depth"]


def test_a_card_of_unknown_speed_still_gets_a_plan() -> None:
    unknown = Hardware(Card(name="next", capability=120, memory=97887 << 20), 8, "pcie", "PHB")
    tuned = tune(unknown)
    assert errors(tuned.findings) == []
    assert tuned.chosen.layout.pipeline == 1
    assert "nothing is known of this GPU's speed" in " ".join(tuned.chosen.reasons.values())


def test_an_unknown_kv_type_is_a_finding() -> None:
    tuned = tune(release=NEW, serving={"kv_cache_type": "nvfp4", "tensor_parallel": 8})
    assert "model.kv_type" in [finding.id for finding in tuned.findings]


def test_case_c28_the_load_barrier_is_foreseen() -> None:
    given: dict[str, Any] = {"serving": {"tensor_parallel": 8, "expert_parallel": 8}}
    assert "launch.load_barrier" in [finding.id for finding in tune(read_rate=900.0, **given).findings]
    assert "launch.load_barrier" not in [finding.id for finding in tune(read_rate=6500.0, **given).findings]
    pipeline = tune(read_rate=900.0, serving={"pipeline_parallel": 8})
    assert "launch.load_barrier" not in [finding.id for finding in pipeline.findings]


@pytest.mark.parametrize(("release", "depth"), [(OLD, 0), (NEW, 1)])
def test_between_nodes_depth_waits_for_the_release_that_ended_its_deadlock(release: str, depth: int) -> None:
    tuned = tune(
        release=release,
        serving={"pipeline_parallel": 16},
        flags={"nnodes": 2, "dist-init-addr": "192.0.2.1:20000"},
        concurrency=64,
    )
    assert tuned.chosen.launch.depth == depth
    assert ("can block" in tuned.chosen.reasons["async_depth"]) == (depth == 0)


@pytest.mark.parametrize(("release", "backend"), [(OLD, "flashinfer_cutlass"), (NEW, None)])
def test_experts_in_nvfp4_are_told_their_kernels_where_sglang_does_not_choose(
    release: str, backend: str | None
) -> None:
    model = replace(KIMI, weight_format=models.Format("nvfp4", 4, 1, 16, 8))
    assert tune(BOX, model, release).chosen.serving.get("moe_backend") == backend
    assert tune(B200, model, release).chosen.serving.get("moe_backend") is None


def test_a_fraction_that_is_no_number_is_left_to_those_who_judge_flags() -> None:
    tuned = tune(serving={"tensor_parallel": 8}, flags={"mem-fraction-static": "much"})
    assert [finding.id for finding in tuned.findings if finding.id.startswith("memory.")] == []


def test_a_rule_against_all_layouts_is_told_of_one_that_fits() -> None:
    """Not of one that lacks memory as well, which would hide what is to be changed."""
    tuned = tune(flags={"attention-backend": "trtllm_mla"})
    assert [finding.id for finding in errors(tuned.findings)] == ["launch.attention_hardware"]


def test_gpus_that_no_layout_has_a_use_for() -> None:
    """37 neither divides heads nor leaves each of 32 layers' stages one."""
    tuned = tune(replace(H200, count=37), LLAMA)
    (finding,) = errors(tuned.findings)
    assert finding.id == "tuning.no_layout"
    assert "no split of 37 GPUs" in finding.seen
    assert tuned.candidates == ()


def test_a_partition_beside_one_stage_is_not_planned_with() -> None:
    partition = {"SGLANG_PP_LAYER_PARTITION": "30,31"}
    tuned = tune(release=NEW, serving={"tensor_parallel": 8}, environment=partition)
    assert errors(tuned.findings) == []
    assert tuned.chosen.budget == tune(release=NEW, serving={"tensor_parallel": 8}).chosen.budget


def test_whole_copies_of_the_model_share_the_gpus_and_the_requests() -> None:
    """--dp-size is no attention group: each copy is planned for its part of both."""
    two = tune(Hardware(CARDS["h100"], 8, "nvlink", "NVL"), LLAMA, NEW, flags={"dp-size": 2}, concurrency=64)
    launch = two.chosen.launch
    assert (launch.tensor, launch.replicas, launch.running, launch.graph_batch) == (4, 2, 64, 32)
    assert two.chosen.budget
    assert two.concurrency == 64
    one = tune(Hardware(CARDS["h100"], 4, "nvlink", "NVL"), LLAMA, NEW, concurrency=32)
    assert two.chosen.loaded
    assert one.chosen.loaded
    assert two.chosen.loaded.tokens_per_second == pytest.approx(2 * one.chosen.loaded.tokens_per_second)
    (finding,) = errors(tune(flags={"dp-size": 8}, release=NEW, concurrency=64).findings)
    assert finding.id == "memory.does_not_fit"


def test_a_tensor_group_stays_inside_a_node() -> None:
    given = {"nnodes": 2, "node-rank": 0, "dist-init-addr": "192.0.2.1:5000"}
    tuned = tune(flags=given)
    assert tuned.chosen.layout.tensor <= 8
    assert tuned.chosen.layout.gpus == 16
    across = tune(flags=given, serving={"tensor_parallel": 16})
    assert across.chosen.loaded is None


@pytest.mark.parametrize(("count", "told"), [(1, False), (2, False), (3, True), (4, False), (6, True), (7, True)])
def test_gpus_that_do_not_divide_the_model_are_told(count: int, told: bool) -> None:
    tuned = tune(Hardware(CARDS["h100"], count, "nvlink", "NVL"), LLAMA, NEW, concurrency=64)
    assert ("tuning.fewer_gpus" in [finding.id for finding in tuned.findings]) == told


def test_less_is_promised_where_nothing_was_and_it_does_not_fit() -> None:
    config = json.loads((SHAPES / "llama-3.1-8b.json").read_text(encoding="utf-8"))
    large = models.read(
        config | {"num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "intermediate_size": 28672}
    )[0]
    four = Hardware(CARDS["l40s"], 4, "pcie", "PHB")
    tuned = tune(four, large, NEW)
    assert tuned.chosen.able
    assert tuned.concurrency < 64
    assert "tuning.promise" in [finding.id for finding in tuned.findings]
    assert errors(tune(four, large, NEW, concurrency=64).findings)


def test_fewer_running_requests_than_are_promised_are_told_and_estimated() -> None:
    tuned = tune(H200, LLAMA, NEW, concurrency=64, serving={"max_running_requests": 1, "tensor_parallel": 2})
    assert "tuning.running" in [finding.id for finding in tuned.findings]
    assert tuned.chosen.loaded == tuned.chosen.single


def test_no_graph_is_sized_where_there_are_none() -> None:
    for size in ({"pipeline_parallel": 8}, {"tensor_parallel": 8}):
        tuned = tune(serving={"cuda_graphs": False, **size})
        assert "cuda_graph_max_batch_size" not in tuned.chosen.serving


def test_a_layout_stays_while_nothing_that_it_was_chosen_from_changes() -> None:
    def asked(questions: Any) -> tuple[list[Estimate], list[Finding]]:
        raise AssertionError(questions)

    keep = Layout(tensor=4, pipeline=2)
    kept = tuning.tune(Wishes(), flag_tables.load(OLD), BOX, KIMI, patches=PATCHES, ask=asked, keep=keep).chosen
    assert replace(kept.layout, partition=()) == keep
    assert "kept, as nothing" in kept.reasons["tensor_parallel"]
    impossible = tuning.tune(Wishes(), flag_tables.load(OLD), BOX, KIMI, patches=PATCHES, keep=Layout(tensor=3)).chosen
    assert impossible.layout == tune().chosen.layout
