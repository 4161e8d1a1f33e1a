# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Each launch rule by a launch that has no fault and the smallest change that gives it one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import shapes
from ansible_collections.inference.sglang.plugins.module_utils import launch_rules, models
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding
from ansible_collections.inference.sglang.plugins.module_utils.flags import FlagTable
from ansible_collections.inference.sglang.plugins.module_utils.launch_rules import Fails, Launch
from ansible_collections.inference.sglang.plugins.module_utils.releases import RELEASES
from ansible_collections.inference.sglang.plugins.plugin_utils import flag_tables

PATCHES = frozenset({"api-key-log", "pp-abort", "swa-start-layer", "triton-layer-probe"})


def shape(name: str) -> models.Shape:
    return models.read(shapes.config(name))[0]


KIMI, DEEPSEEK, GPT_OSS, LLAMA = map(shape, ("kimi-k2.5", "deepseek-v3", "gpt-oss-120b", "llama-3.1-8b"))
NVFP4 = replace(KIMI, weight_format=models.Format("nvfp4", 4, 1, 16, 8))
UNPACKED = replace(KIMI, quantization="")
PACKED_FP4 = replace(KIMI, quantization="modelopt_fp4")
GPT_OSS_ALONE = replace(KIMI, quantization="mxfp4")

# Eight RTX PRO 6000 on PCIe.
STAGES = Launch(
    release="0.5.12.post1",
    table=flag_tables.history()["0.5.12.post1"],
    flags={
        "--model-path": "/srv/kimi",
        "--pp-size": 8,
        "--attention-backend": "triton",
        "--pp-async-batch-depth": 1,
        "--pp-max-micro-batch-size": 8,
        "--max-running-requests": 72,
        "--cuda-graph-max-bs": 8,
        "--trust-remote-code": True,
    },
    environment={"NCCL_P2P_LEVEL": "SYS", "SGLANG_ENABLE_JIT_DEEPGEMM": "0"},
    shape=KIMI,
    capability=120,
    gpu_count=8,
    nodes=1,
    links="pcie",
    patches=PATCHES,
    concurrency=64,
)
EXPERTS = replace(
    STAGES,
    flags={"--model-path": "/srv/kimi", "--tp-size": 8, "--ep-size": 8, "--attention-backend": "triton"},
    environment={"NCCL_GRAPH_REGISTER": "0", "SGLANG_ENABLE_JIT_DEEPGEMM": "0"},
)
# Eight B200.
LINKED = replace(EXPERTS, capability=100, links="nvlink")
NODES = {"--nnodes": 2, "--dist-init-addr": "10.0.0.1:5000"}


def changed(
    base: Launch,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    **fields: Any,
) -> Launch:
    """The launch with other flags, variables and fields; flags that are None are taken out."""
    release = fields.get("release", base.release)
    table = flag_tables.history()[release] if release else FlagTable([])
    kept = dict(base.flags)
    if "--cuda-graph-max-bs" in kept and "--cuda-graph-max-bs-decode" in table:
        kept["--cuda-graph-max-bs-decode"] = kept.pop("--cuda-graph-max-bs")
    return replace(
        base,
        table=table,
        flags={name: value for name, value in {**kept, **(flags or {})}.items() if value is not None},
        environment={**base.environment, **(environment or {})},
        **fields,
    )


@dataclass(frozen=True)
class Case:
    """One change, and when SGLang itself would have failed."""

    rule: str
    fails: Fails
    base: Launch = STAGES
    flags: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    severity: str = "error"

    @property
    def launch(self) -> Launch:
        return changed(self.base, self.flags, self.environment, **self.fields)

    def __str__(self) -> str:
        # A set has another order in each process, and a test must have one name in all of them.
        fields = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in self.fields.items()}
        given = {**self.flags, **self.environment, **{name: str(value)[:20] for name, value in fields.items()}}
        return f"{self.rule} {given}"


def case(rule: str, fails: Fails, base: Launch = STAGES, /, *given: Mapping[str, Any], **fields: Any) -> Case:
    flags = next((part for part in given if all(name.startswith("--") for name in part)), {})
    environment = next((part for part in given if not all(name.startswith("--") for name in part)), {})
    severity = fields.pop("severity", "error")
    return Case(rule, fails, base, flags, environment, fields, severity)


C, B, W, LOADED, LATE, NEVER = Fails.CHECK, Fails.BUILD, Fails.WAITS, Fails.LOADED, Fails.LATE, Fails.NEVER
WARNING = {"severity": "warning"}
INFO = {"severity": "info"}
TWO = {"--pp-size": 2}
RELEASED = {"release": "0.5.23", "patches": PATCHES}

CASES = (
    case("nodes", W, nodes=2),
    case("node_rank", W, STAGES, {"--node-rank": 1}),
    case("node_rank", W, STAGES, {"--node-rank": -1}),
    case("rendezvous", W, EXPERTS, {"--nnodes": 2}, nodes=2),
    case("node_division", C, EXPERTS, {**NODES, "--nnodes": 3, "--ep-size": None}, nodes=3),
    case(
        "node_layout",
        W,
        STAGES,
        {**NODES, "--pp-size": 3, "--tp-size": 2, "--pp-async-batch-depth": 0},
        {"NCCL_GRAPH_REGISTER": "0"},
        nodes=2,
    ),
    case("gpu_numbers", C, STAGES, {"--base-gpu-id": -1}),
    case("gpu_numbers", C, STAGES, {"--gpu-id-step": 0}),
    case("gpus", B, gpu_count=4),
    case("gpus", B, STAGES, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}),
    case("gpus", B, STAGES, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, gpu_count=None),
    case("gpus", B, EXPERTS, {"--gpu-id-step": 2}),
    case("gpus", B, EXPERTS, {"--base-gpu-id": 1}),
    case("gpus", B, EXPERTS, {"--dp-size": 2}),
    case(
        "gpu_overlap",
        B,
        STAGES,
        {"--tp-size": 4, "--pp-size": 2, "--gpu-id-step": 2, "--pp-async-batch-depth": 0, "--max-running-requests": 16},
        {"NCCL_GRAPH_REGISTER": "0"},
        gpu_count=12,
    ),
    case("pipeline_excludes", C, STAGES, {"--enable-pdmux": True}),
    case("pipeline_excludes", C, STAGES, {"--moe-dp-size": 2}),
    case("pipeline_excludes", C, STAGES, {"--elastic-ep-backend": "mooncake"}),
    case("pipeline_excludes", C, STAGES, {"--min-free-slots-delay": 4}, release="0.5.18"),
    case("pipeline_delay", NEVER, STAGES, {"--min-free-slots-delay": 4}, release="0.5.17"),
    case("pipeline_speculation", C, STAGES, {"--speculative-algorithm": "EAGLE"}),
    case("pipeline_speculation", C, STAGES, {"--speculative-algorithm": "EAGLE"}, release="0.5.20"),
    case("pipeline_speculation", C, STAGES, {"--speculative-algorithm": "EAGLE"}, **RELEASED),
    case(
        "pipeline_speculation",
        C,
        STAGES,
        {"--speculative-algorithm": "DFLASH"},
        {"SGLANG_ENABLE_PP_SPEC": "1"},
        **RELEASED,
    ),
    case(
        "pipeline_speculation",
        C,
        STAGES,
        {"--speculative-algorithm": "EAGLE", "--enable-multi-layer-eagle": True},
        {"SGLANG_ENABLE_PP_SPEC": "1"},
        **RELEASED,
    ),
    case("pipeline_model", LOADED, shape=None, architecture="KimiVLForConditionalGeneration"),
    case("pipeline_model", LOADED, shape=None, architecture="SolarForCausalLM", release="0.5.21"),
    case("patch_layer_probe", LOADED, patches=PATCHES - {"triton-layer-probe"}),
    case("patch_layer_probe", LOADED, patches=PATCHES - {"triton-layer-probe"}, release="0.5.17"),
    case(
        "patch_layer_probe",
        LOADED,
        STAGES,
        {"--pp-size": 2, "--max-running-requests": 24},
        patches=PATCHES - {"triton-layer-probe"},
    ),
    case("patch_layer_probe", LOADED, STAGES, {"--attention-backend": None}, patches=PATCHES - {"triton-layer-probe"}),
    case(
        "patch_layer_probe",
        LOADED,
        STAGES,
        {"--attention-backend": "flashinfer", "--decode-attention-backend": "triton"},
        patches=PATCHES - {"triton-layer-probe"},
    ),
    case("patch_window_pool", LOADED, shape=GPT_OSS, patches=PATCHES - {"swa-start-layer"}),
    case("patch_window_pool", LOADED, shape=GPT_OSS, patches=PATCHES - {"swa-start-layer"}, release="0.5.23"),
    case("patch_abort", NEVER, patches=PATCHES - {"pp-abort"}, **WARNING),
    case("partition", B, STAGES, {"SGLANG_PP_LAYER_PARTITION": "8,8,8,8,8,8,8,7"}),
    case("partition", B, STAGES, {"SGLANG_PP_LAYER_PARTITION": "31,30"}),
    case("partition", B, STAGES, {"SGLANG_PP_LAYER_PARTITION": "8,8,8,8,8,8,8,five"}),
    case("partition", B, STAGES, {"SGLANG_PP_LAYER_PARTITION": "31,30"}, shape=None),
    case("partition", B, EXPERTS, {"SGLANG_PP_LAYER_PARTITION": "31,30"}),
    case("stages", B, STAGES, {"SGLANG_PP_LAYER_PARTITION": "0,9,9,9,9,9,8,8"}),
    case("stages", B, shape=replace(KIMI, layers=KIMI.layers[:6])),
    case("heads", B, EXPERTS, shape=replace(KIMI, heads=60)),
    case("expert_size", B, STAGES, {"--ep-size": 8}),
    case("expert_size", NEVER, EXPERTS, {"--ep-size": 3}),
    case("expert_size", LOADED, EXPERTS, {"--ep-size": 5}, shape=replace(DEEPSEEK, experts=250), capability=90),
    case("expert_size", B, EXPERTS, {"--ep-size": 3}, release="0.5.21"),
    case("experts", B, EXPERTS, shape=replace(KIMI, experts=380)),
    case("experts", B, EXPERTS, {"--ep-num-redundant-experts": 4}),
    case("expert_width", B, EXPERTS, {"--ep-size": 1}, shape=replace(KIMI, expert_width=2044)),
    case("expert_blocks", LOADED, EXPERTS, {"--ep-size": 1}, shape=replace(DEEPSEEK, expert_width=1536), capability=90),
    case("all_to_all_size", NEVER, LINKED, {"--ep-size": 4, "--moe-a2a-backend": "deepep"}, **WARNING),
    case("all_to_all_runner", C, LINKED, {"--moe-a2a-backend": "flashinfer"}),
    case(
        "all_to_all_runner",
        C,
        LINKED,
        {
            "--moe-a2a-backend": "flashinfer",
            "--moe-runner-backend": "triton",
            "--enable-dp-attention": True,
            "--dp-size": 8,
        },
        release="0.5.21",
    ),
    case("all_to_all_groups", C, LINKED, {"--moe-a2a-backend": "flashinfer"}, **RELEASED),
    case("all_to_all_hardware", LATE, EXPERTS, {"--moe-a2a-backend": "deepep"}),
    case("all_to_all_hardware", LATE, EXPERTS, {"--moe-a2a-backend": "deepep"}, links="nvlink"),
    case("all_to_all_hardware", LATE, EXPERTS, {"--moe-a2a-backend": "deepep"}, capability=90),
    case("all_to_all_hardware", C, EXPERTS, {"--moe-a2a-backend": "megamoe"}, **RELEASED),
    case("two_batches", C, EXPERTS, {"--enable-two-batch-overlap": True}),
    case(
        "two_batches", C, EXPERTS, {"--enable-two-batch-overlap": True, "--enable-dp-attention": True, "--dp-size": 8}
    ),
    case("expert_balance", C, EXPERTS, {"--enable-eplb": True, "--ep-size": 1}),
    case("attention_groups", C, EXPERTS, {"--enable-dp-attention": True, "--dp-size": 3}),
    case("attention_groups", C, EXPERTS, {"--attn-dp-size": 3}, **RELEASED),
    case("attention_groups_ignored", NEVER, EXPERTS, {"--enable-dp-attention": True}, **WARNING),
    case("replicas_on_nodes", C, EXPERTS, {**NODES, "--dp-size": 2}, nodes=2, gpu_count=16),
    case("chunk_pages", C, STAGES, {"--chunked-prefill-size": 8192, "--page-size": 48}),
    case("chunk_pages", C, LINKED, {"--chunked-prefill-size": 1000, "--attention-backend": "trtllm_mla"}),
    case(
        "chunk_pages",
        C,
        EXPERTS,
        {"--chunked-prefill-size": 4096, "--page-size": 1024, "--enable-dp-attention": True, "--dp-size": 8},
    ),
    case("micro_batch", C, EXPERTS, {"--pp-max-micro-batch-size": 0}),
    case("micro_batch", NEVER, EXPERTS, {"--pp-max-micro-batch-size": 65, "--max-running-requests": 64}),
    case("dense_tensor_size", C, EXPERTS, {"--moe-dense-tp-size": 8}),
    case("dense_tensor_size", C, EXPERTS, {"--moe-dense-tp-size": 2}, release="0.5.13"),
    case("served_name", C, STAGES, {"--served-model-name": "kimi:k2"}),
    case("served_name", C, STAGES, {"--model-path": "/srv/kimi:2"}),
    case("graph_padding", C, STAGES, {"--disable-cuda-graph-padding": True, "--enable-torch-compile": True}),
    case(
        "graph_padding",
        NEVER,
        STAGES,
        {"--disable-cuda-graph-padding": True, "--enable-torch-compile": True},
        release="0.5.11",
    ),
    case("attention_hardware", LATE, EXPERTS, {"--attention-backend": "trtllm_mla"}),
    case(
        "attention_hardware",
        LATE,
        EXPERTS,
        {"--prefill-attention-backend": "trtllm_mla", "--decode-attention-backend": "triton"},
    ),
    case("attention_hardware", C, EXPERTS, {"--attention-backend": "trtllm_mla"}, capability=90),
    case("attention_hardware", C, EXPERTS, {"--attention-backend": "trtllm_mha"}, shape=LLAMA),
    case("attention_hardware", C, EXPERTS, {"--attention-backend": "trtllm_mha"}, shape=LLAMA, capability=80),
    case(
        "attention_hardware",
        C,
        EXPERTS,
        {"--attention-backend": "trtllm_mha", "--kv-cache-dtype": "fp8_e4m3"},
        shape=LLAMA,
        **RELEASED,
    ),
    case("attention_hardware", C, EXPERTS, {"--decode-attention-backend": "cutedsl_mla"}, **RELEASED),
    case("attention_hardware", LOADED, EXPERTS, {"--attention-backend": "fa3"}),
    case("attention_hardware", LOADED, EXPERTS, {"--attention-backend": "fa3"}, capability=80),
    case("attention_hardware", LATE, EXPERTS, {"--attention-backend": "flashmla"}),
    case("attention_hardware", LATE, EXPERTS, {"--attention-backend": "cutlass_mla"}),
    case("attention_hardware", LATE, EXPERTS, {"--attention-backend": "fa4"}),
    case("attention_model", LOADED, LINKED, {"--attention-backend": "trtllm_mha"}),
    case("attention_model", LOADED, LINKED, {"--attention-backend": "trtllm_mla"}, shape=LLAMA),
    case(
        "hybrid_attention",
        LOADED,
        LINKED,
        {"--attention-backend": "flashinfer"},
        shape=None,
        architecture="Qwen3NextForCausalLM",
        release="0.5.20",
    ),
    case(
        "hybrid_attention",
        LOADED,
        EXPERTS,
        {"--attention-backend": "fa4"},
        shape=None,
        architecture="Qwen3NextForCausalLM",
        release="0.5.22",
    ),
    case("moe_hardware", LATE, EXPERTS, {"--moe-runner-backend": "flashinfer_trtllm"}),
    case("moe_hardware", C, EXPERTS, {"--quantization": "nvfp4_online"}, shape=UNPACKED, **RELEASED),
    case("fp4_runner", LATE, EXPERTS, shape=NVFP4),
    case("fp4_runner", LATE, EXPERTS, {"--quantization": "modelopt_fp4"}, shape=UNPACKED),
    case("quantization", C, EXPERTS, {"--quantization": "fp8"}),
    case("quantization", C, EXPERTS, {"--quantization": "FP8"}, release=""),
    case("quantization", C, LINKED, {"--quantization": "nvfp4_online"}, shape=DEEPSEEK, release="0.5.13"),
    case("quantization", C, LINKED, {"--quantization": "nvfp4_online"}, shape=PACKED_FP4, release="0.5.23"),
    case("quantization", C, EXPERTS, {"--quantization": "fp8"}, shape=GPT_OSS_ALONE),
    case("quantization", C, LINKED, {"--quantization": "humming"}, shape=GPT_OSS_ALONE, release="0.5.16"),
    case("kv_type", C, EXPERTS, {"--kv-cache-dtype": "nvfp4"}, capability=90, **RELEASED),
    case("expert_runner", C, LINKED, {"--moe-runner-backend": "flashinfer_cutlass", "--ep-size": 4}),
    case("expert_runner", C, LINKED, {"--moe-runner-backend": "cutlass", "--quantization": "fp8"}, shape=UNPACKED),
    case("deep_gemm", LATE, EXPERTS, {"SGLANG_ENABLE_JIT_DEEPGEMM": "1"}, shape=DEEPSEEK),
    case("deep_gemm", LATE, EXPERTS, {"SGLANG_ENABLE_JIT_DEEPGEMM": "1"}, shape=None, **WARNING),
    case(
        "deep_gemm",
        LATE,
        EXPERTS,
        {"SGLANG_ENABLE_JIT_DEEPGEMM": "1"},
        shape=DEEPSEEK,
        capability=121,
        release="0.5.20",
    ),
    case("installed", B, installed={"flashinfer-python": "0.6.14", "flashinfer-cubin": "0.6.13"}, release="0.5.16"),
    case("installed", B, installed={"flashinfer-jit-cache": "0.6.13+cu130"}, release="0.5.16"),
    case("installed", NEVER, installed={"flashinfer-python": "0.6.12"}, **WARNING),
    case("installed", NEVER, installed={"sglang-kernel": "0.4.1"}, **WARNING),
    case("other_nodes", LATE, others=(("0.5.12.post1", frozenset()),)),
    case("other_nodes", LATE, others=(("0.5.12", PATCHES),)),
    case("load_barrier", LATE, EXPERTS, load_bytes=594_000_000_000, read_rate=900.0),
    case("load_barrier", LATE, EXPERTS, load_bytes=594_000_000_000, read_rate=1400.0, **WARNING),
    case("graphs_disabled", NEVER, STAGES, {"--disable-cuda-graph": True}, **WARNING),
    case("graphs_disabled", NEVER, STAGES, {"--disable-cuda-graph": True}, **WARNING, **RELEASED),
    case("graphs_disabled", NEVER, STAGES, {"--disable-decode-cuda-graph": True}, **WARNING, **RELEASED),
    case("graphs_disabled", NEVER, STAGES, {"--cuda-graph-backend-decode": "disabled"}, **WARNING, **RELEASED),
    case(
        "graphs_disabled",
        NEVER,
        STAGES,
        {"--cuda-graph-config": '{"decode": {"backend": "disabled"}}'},
        **WARNING,
        **RELEASED,
    ),
    case("graph_batch", NEVER, STAGES, {"--cuda-graph-max-bs": None}, **WARNING),
    case("graph_batch", NEVER, STAGES, {"--cuda-graph-max-bs": 32}, **WARNING),
    case("graph_batch", NEVER, STAGES, {"--cuda-graph-bs": [1, 2, 16]}, **WARNING),
    case(
        "graph_batch",
        NEVER,
        STAGES,
        {"--cuda-graph-max-bs-decode": None, "--cuda-graph-config": {"decode": {"max_bs": 32}}},
        **WARNING,
        **RELEASED,
    ),
    case("graph_batch_small", NEVER, STAGES, {"--cuda-graph-max-bs": 4}, **WARNING),
    case("graph_batch_small", NEVER, EXPERTS, {"--cuda-graph-max-bs": 32}, **WARNING),
    case("prefill_graphs", LATE, STAGES, {"--enforce-piecewise-cuda-graph": True}, **WARNING),
    case("prefill_graphs", LATE, STAGES, {"--cuda-graph-backend-prefill": "tc_piecewise"}, release="0.5.21", **WARNING),
    case("prefill_graphs", LATE, EXPERTS, {"--cuda-graph-backend-prefill": "breakable"}, release="0.5.15", **WARNING),
    case("async_depth", NEVER, STAGES, {"--pp-async-batch-depth": 3, "--max-running-requests": 88}, **WARNING),
    case("async_depth_ignored", NEVER, EXPERTS, {"--pp-async-batch-depth": 1}, **INFO),
    case("async_depth_nodes", LATE, STAGES, NODES, nodes=2, **WARNING),
    case("packed_slot", NEVER, STAGES, concurrency=8, **WARNING),
    case(
        "packed_slot",
        NEVER,
        STAGES,
        {"--pp-max-micro-batch-size": None, "--max-running-requests": 64, "--pp-async-batch-depth": 0},
        concurrency=None,
        **WARNING,
    ),
    case(
        "packed_slot",
        NEVER,
        STAGES,
        {"--pp-max-micro-batch-size": None, "--max-running-requests": None},
        **WARNING,
    ),
    case("running_requests", NEVER, STAGES, {"--max-running-requests": 64}, **WARNING),
    case("nccl_level", NEVER, STAGES, {"NCCL_P2P_LEVEL": "5"}, **WARNING),
    case("nccl_level", NEVER, STAGES, {"NCCL_P2P_LEVEL": "sys"}, **WARNING),
    case("nccl_level", NEVER, STAGES, {"NCCL_P2P_LEVEL": "²"}, **WARNING),
    case("nccl_level", NEVER, STAGES, {"NCCL_P2P_LEVEL": "٣"}, **WARNING),
    case("nccl_p2p", NEVER, EXPERTS, {"NCCL_P2P_DISABLE": "1"}, **WARNING),
    case("nccl_p2p", NEVER, EXPERTS, {"NCCL_P2P_DISABLE": "1"}, release="0.5.23", **WARNING),
    case("nccl_graphs", NEVER, EXPERTS, {"NCCL_GRAPH_REGISTER": "1"}, **WARNING),
    case("nccl_graphs", NEVER, EXPERTS, {"NCCL_GRAPH_REGISTER": "1"}, release="0.5.22", **WARNING),
    case(
        "nccl_infiniband",
        NEVER,
        EXPERTS,
        {**NODES, "--ep-size": 16, "--tp-size": 16},
        {"NCCL_IB_DISABLE": "1"},
        nodes=2,
        **WARNING,
    ),
    case("nccl_algorithm", NEVER, STAGES, {"NCCL_ALGO": "Ring"}, **INFO),
    case("chunk_pages", C, LINKED, {"--chunked-prefill-size": 96, "--attention-backend": "flashmla"}),
    case("chunk_pages", C, LINKED, {"--chunked-prefill-size": 64, "--attention-backend": "cutlass_mla"}),
    case("load_barrier", LATE, EXPERTS, load_bytes=480_000_000_000, read_rate=1000.0, **WARNING),
    case("graphs_disabled", NEVER, LINKED, {"--moe-a2a-backend": "deepep", "--disable-cuda-graph": True}, **WARNING),
    case(
        "packed_slot",
        NEVER,
        STAGES,
        TWO | {"--pp-max-micro-batch-size": 2, "--cuda-graph-max-bs": 2},
        concurrency=2,
        **WARNING,
    ),
    case("async_depth", NEVER, STAGES, TWO | {"--pp-async-batch-depth": 3}, **WARNING),
    case("async_depth_nodes", LATE, STAGES, TWO | NODES, nodes=2, **WARNING),
    case("nccl_algorithm", NEVER, STAGES, TWO, {"NCCL_ALGO": "Ring"}, **INFO),
    case(
        "pipeline_speculation",
        C,
        STAGES,
        {"--speculative-algorithm": "EAGLE", "--speculative-adaptive": True},
        {"SGLANG_ENABLE_PP_SPEC": "1"},
        **RELEASED,
    ),
    case("patch_window_pool", LOADED, STAGES, TWO, shape=GPT_OSS, patches=PATCHES - {"swa-start-layer"}),
    case("patch_abort", NEVER, STAGES, TWO, patches=PATCHES - {"pp-abort"}, **WARNING),
    case("two_batches", C, EXPERTS, {"--enable-two-batch-overlap": True}, release="0.5.15"),
    case("graph_batch", NEVER, STAGES, TWO | {"--cuda-graph-max-bs": 32}, **WARNING),
    case("graph_batch_small", NEVER, STAGES, TWO | {"--cuda-graph-max-bs": 4}, **WARNING),
    case("running_requests", NEVER, STAGES, TWO | {"--max-running-requests": 23}, **WARNING),
    case("prefill_graphs", LATE, STAGES, TWO | {"--enforce-piecewise-cuda-graph": True}, **WARNING),
    case(
        "nccl_graphs",
        NEVER,
        EXPERTS,
        {"--enable-dp-attention": True, "--dp-size": 8},
        {"NCCL_GRAPH_REGISTER": "1"},
        release="0.5.20",
        **WARNING,
    ),
    case("max_connections", NEVER, STAGES, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, **INFO),
)

FINE = (
    (STAGES, {}, {}, {}),
    (STAGES, {}, {}, {"release": "0.5.23", "patches": frozenset()}),
    (STAGES, {}, {}, {"capability": None, "gpu_count": None, "nodes": None, "links": None}),
    (STAGES, NODES | {"--pp-async-batch-depth": 0}, {}, {"nodes": 2, "gpu_count": 4}),
    (STAGES, NODES, {}, {"nodes": 2, "gpu_count": 4, "release": "0.5.23"}),
    (
        STAGES,
        {"--pp-size": 1, "--pp-max-micro-batch-size": None, "--pp-async-batch-depth": None, "--cuda-graph-max-bs": 72},
        {},
        {"patches": frozenset()},
    ),
    (STAGES, {"--pp-async-batch-depth": 2, "--max-running-requests": 80}, {}, {}),
    (STAGES, {}, {"NCCL_P2P_DISABLE": "1"}, {}),
    (EXPERTS, {"--disable-custom-all-reduce": True}, {"NCCL_P2P_DISABLE": "1"}, {}),
    (EXPERTS, {"--disable-custom-all-reduce": True}, {}, {}),
    (EXPERTS, {}, {"NCCL_P2P_DISABLE": "0"}, {}),
    (STAGES, {"--attention-backend": "flashinfer"}, {}, {"patches": PATCHES - {"triton-layer-probe"}}),
    (STAGES, {}, {"SGLANG_PP_LAYER_PARTITION": "8,8,8,8,8,7,7,7"}, {}),
    (EXPERTS, {}, {"SGLANG_PP_LAYER_PARTITION": "31,30"}, {"release": "0.5.19"}),
    (STAGES, {"--speculative-algorithm": "EAGLE"}, {"SGLANG_ENABLE_PP_SPEC": "1"}, {"release": "0.5.21"}),
    (
        STAGES,
        {"--speculative-algorithm": "DSPARK", "--disaggregation-mode": "prefill"},
        {},
        {"release": "0.5.21"},
    ),
    (STAGES, {"--pp-max-micro-batch-size": 8}, {}, {"concurrency": None}),
    (
        STAGES,
        {"--pp-max-micro-batch-size": 1, "--max-running-requests": 9, "--cuda-graph-max-bs": 1},
        {},
        {"concurrency": 1},
    ),
    (
        STAGES,
        {"--disable-cuda-graph": True, "--attention-backend": "torch_native", "--cuda-graph-max-bs": None},
        {},
        {},
    ),
    (STAGES, {"--disable-cuda-graph-padding": True}, {}, {}),
    (STAGES, {"--enable-torch-compile": True}, {}, {}),
    (STAGES, {}, {"SGLANG_PP_LAYER_PARTITION": "1,9,9,9,9,8,8,8"}, {}),
    (STAGES, TWO | {"--pp-async-batch-depth": 0}, {}, {"patches": PATCHES - {"pp-abort"}}),
    (STAGES, {"--tp-size": 2, "--pp-size": 4}, {"NCCL_ALGO": "Ring", "NCCL_GRAPH_REGISTER": "0"}, {}),
    (EXPERTS, {}, {"NCCL_ALGO": "Ring"}, {}),
    (EXPERTS, {}, {}, {"patches": frozenset(), "shape": GPT_OSS}),
    (EXPERTS, {"--enforce-piecewise-cuda-graph": True}, {}, {}),
    (EXPERTS, {"--enable-pdmux": True, "--min-free-slots-delay": 4, "--speculative-algorithm": "EAGLE"}, {}, {}),
    (EXPERTS, {"--min-free-slots-delay": 4}, {}, {"release": "0.5.23"}),
    (EXPERTS, {"--ep-size": 1}, {}, {"shape": None}),
    (EXPERTS, {"--ep-size": 2, "--enable-eplb": True}, {}, {}),
    (EXPERTS, {"--enable-dp-attention": True, "--dp-size": 2}, {}, {}),
    (EXPERTS, {"--pp-max-micro-batch-size": 64, "--max-running-requests": 64}, {}, {}),
    (EXPERTS, {"--kv-cache-dtype": "nvfp4"}, {}, {"release": "0.5.23"}),
    (EXPERTS, {}, {"SGLANG_ENABLE_JIT_DEEPGEMM": "1"}, {"shape": DEEPSEEK, "capability": 90}),
    (EXPERTS, {}, {}, {"load_bytes": 400_000_000_000, "read_rate": 1000.0}),
    (EXPERTS, {"--attention-backend": "fa3"}, {}, {"capability": 90}),
    (EXPERTS, {"--decode-attention-backend": "trtllm_mha"}, {}, {"shape": LLAMA, "capability": 90}),
    (EXPERTS, {"--attention-backend": "trtllm_mha"}, {}, {"shape": LLAMA, "capability": 90, "release": "0.5.19"}),
    (LINKED, {"--decode-attention-backend": "cutedsl_mla"}, {}, {"release": "0.5.23"}),
    (LINKED, {"--chunked-prefill-size": 64, "--attention-backend": "flashmla"}, {}, {}),
    (LINKED, {"--chunked-prefill-size": 128, "--attention-backend": "cutlass_mla"}, {}, {}),
    (LINKED, {"--chunked-prefill-size": 64, "--attention-backend": "trtllm_mla"}, {}, {}),
    (LINKED, {"--chunked-prefill-size": 32, "--attention-backend": "trtllm_mla", "--page-size": 32}, {}, {}),
    (LINKED, {"--moe-runner-backend": "cutlass"}, {}, {}),
    (LINKED, {"--quantization": "fp8"}, {}, {"shape": UNPACKED}),
    (LINKED, {"--quantization": "fp8"}, {}, {"shape": DEEPSEEK}),
    (LINKED, {"--quantization": "fp8"}, {}, {"shape": None}),
    (LINKED, {"--quantization": "unquant"}, {}, {}),
    (LINKED, {"--quantization": "w8a8_int8"}, {}, {}),
    (LINKED, {"--quantization": "w8a8_int8"}, {}, {"release": ""}),
    (LINKED, {"--quantization": "nvfp4_online"}, {}, {"release": "", "shape": DEEPSEEK}),
    (LINKED, {"--quantization": "fp8"}, {}, {"shape": PACKED_FP4}),
    (LINKED, {"--moe-runner-backend": "flashinfer_cutlass", "--ep-size": 1}, {}, {}),
    (STAGES, {"--disable-cuda-graph": True, "--device": "cpu"}, {}, {}),
    (STAGES, {"--disable-cuda-graph": False}, {}, {}),
    (
        STAGES,
        {"--disable-cuda-graph": True, "--cuda-graph-backend-decode": "full"},
        {},
        {"release": "0.5.23"},
    ),
    (STAGES, {"--cuda-graph-config": "not JSON"}, {}, {"release": "0.5.23"}),
    (STAGES, {"--cuda-graph-config": "[1]"}, {}, {"release": "0.5.23"}),
    (EXPERTS, {}, {}, {"release": "0.5.22"}),
    (EXPERTS, {}, {"NCCL_GRAPH_REGISTER": "1"}, {"release": "0.5.23"}),
    (
        EXPERTS,
        {"--disaggregation-mode": "decode", "--enable-dp-attention": True, "--dp-size": 8},
        {"NCCL_GRAPH_REGISTER": "1"},
        {"release": "0.5.20"},
    ),
    (EXPERTS, {"--ep-size": 4}, {}, {}),
    (EXPERTS, {"--ep-size": None}, {}, {}),
    (EXPERTS, {"--max-running-requests": 64}, {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, {}),
    (EXPERTS, {"--tp-size": 4, "--ep-size": 4, "--base-gpu-id": 4}, {}, {}),
    (EXPERTS, {"--tp-size": 4, "--ep-size": 4, "--gpu-id-step": 2}, {}, {}),
    (EXPERTS, {"--tp-size": 4, "--ep-size": 4, "--dp-size": 2}, {}, {}),
    (EXPERTS, {}, {}, {"shape": DEEPSEEK, "release": "0.5.13"}),
    (EXPERTS, {}, {"SGLANG_ENABLE_JIT_DEEPGEMM": "0"}, {"shape": DEEPSEEK}),
    (
        EXPERTS,
        {"--ep-size": 1},
        {"SGLANG_SHARED_EXPERT_TP1": "true"},
        {"shape": replace(DEEPSEEK, expert_width=1536), "capability": 90},
    ),
    (EXPERTS, {"--attention-backend": "trtllm_mha"}, {}, {"shape": LLAMA, "release": "0.5.19"}),
    (EXPERTS, {"--decode-attention-backend": "trtllm_mha"}, {}, {"shape": LLAMA}),
    (EXPERTS, {"--attention-backend": "fa4"}, {}, {"release": "0.5.18"}),
    (EXPERTS, {"--attention-backend": "fa3"}, {}, {"capability": 80, "shape": LLAMA}),
    (EXPERTS, {"--attention-backend": None}, {}, {"capability": 90}),
    (LINKED, {"--attention-backend": "trtllm_mla"}, {}, {}),
    (LINKED, {"--chunked-prefill-size": 1024, "--attention-backend": "trtllm_mla", "--page-size": 32}, {}, {}),
    (EXPERTS, {"--chunked-prefill-size": -1, "--page-size": 64}, {}, {}),
    (EXPERTS, {"--chunked-prefill-size": 1000, "--page-size": 64, "--disaggregation-mode": "decode"}, {}, {}),
    (LINKED, {"--moe-a2a-backend": "deepep"}, {}, {}),
    (LINKED, {"--moe-a2a-backend": "deepep", "--ep-size": None}, {}, {}),
    (LINKED, {"--moe-a2a-backend": "deepep", "--deepep-mode": "normal", "--disable-cuda-graph": True}, {}, {}),
    (
        LINKED,
        {"--moe-a2a-backend": "flashinfer", "--moe-runner-backend": "flashinfer_cutlass", "--attn-dp-size": 8},
        {},
        {"release": "0.5.22"},
    ),
    (LINKED, {"--moe-a2a-backend": "flashinfer", "--attn-dp-size": 8}, {}, {"release": "0.5.22"}),
    (LINKED, {"--moe-runner-backend": "flashinfer_trtllm"}, {}, {}),
    (LINKED, {"--kv-cache-dtype": "nvfp4"}, {}, {"release": "0.5.23"}),
    (LINKED, {"--moe-runner-backend": "flashinfer_cutlass"}, {}, {}),
    (EXPERTS, {"--moe-runner-backend": "flashinfer_cutlass"}, {}, {"shape": NVFP4}),
    (EXPERTS, {}, {}, {"shape": NVFP4, "release": "0.5.13"}),
    (
        EXPERTS,
        {"--attention-backend": "flashinfer"},
        {},
        {"shape": None, "architecture": "Qwen3NextForCausalLM", "release": "0.5.16"},
    ),
    (
        LINKED,
        {"--attention-backend": "flashinfer"},
        {},
        {"shape": None, "architecture": "Qwen3NextForCausalLM", "release": "0.5.21"},
    ),
    (
        EXPERTS,
        {"--enable-two-batch-overlap": True, "--enable-dp-attention": True, "--dp-size": 8},
        {},
        {"release": "0.5.15"},
    ),
    (EXPERTS, {"--enable-eplb": True}, {}, {}),
    (EXPERTS, {"--moe-dense-tp-size": 1}, {}, {}),
    (EXPERTS, {"--moe-dense-tp-size": 8}, {}, {"release": "0.5.13"}),
    (EXPERTS, {"--model-path": "s3://models/kimi"}, {}, {}),
    (EXPERTS, {}, {}, {"load_bytes": 594_000_000_000, "read_rate": 6500.0}),
    (STAGES, {}, {}, {"load_bytes": 594_000_000_000, "read_rate": 900.0}),
    (STAGES, {}, {}, {"others": (("0.5.12.post1", PATCHES),)}),
    (STAGES, {}, {}, {"installed": {"flashinfer-python": "0.7.2", "flashinfer-cubin": "0.7.1"}, "release": "0.5.23"}),
    (STAGES, {}, {}, {"installed": {"flashinfer-python": "0.6.11.post1", "sglang-kernel": "0.4.2.post2"}}),
    (EXPERTS, {"--cuda-graph-max-bs": 32, "--enable-dp-attention": True, "--dp-size": 8}, {}, {}),
    (EXPERTS, {"--cuda-graph-max-bs": 64}, {}, {}),
    (STAGES, {}, {}, {"shape": GPT_OSS}),
    (STAGES, {}, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, {}),
)


OLDEST, NEWEST = "0.5.10", "0.5.23"
GROUPS = {"--moe-a2a-backend": "flashinfer", "--enable-dp-attention": True, "--dp-size": 8}
NOBODY = {"patches": frozenset()}
NEXT = {"shape": None, "architecture": "Qwen3NextForCausalLM"}
DEEP_GEMM = {"SGLANG_ENABLE_JIT_DEEPGEMM": "1"}

# What finds a launch in which releases, from the first to the last; the window of the flag tables.
BORDERS = (
    ("pipeline_excludes", STAGES, {"--elastic-ep-backend": "mooncake"}, {}, {}, "0.5.11", NEWEST),
    ("pipeline_excludes", STAGES, {"--min-free-slots-delay": 1}, {}, {}, "0.5.18", NEWEST),
    ("pipeline_delay", STAGES, {"--min-free-slots-delay": 1}, {}, {}, OLDEST, "0.5.17"),
    (
        "pipeline_speculation",
        STAGES,
        {"--speculative-algorithm": "EAGLE"},
        {"SGLANG_ENABLE_PP_SPEC": "1"},
        {},
        OLDEST,
        "0.5.20",
    ),
    ("pipeline_model", STAGES, {}, {}, {"shape": None, "architecture": "Gemma4ForCausalLM"}, OLDEST, "0.5.12.post1"),
    ("pipeline_model", STAGES, {}, {}, {"shape": None, "architecture": "SolarForCausalLM"}, OLDEST, "0.5.21"),
    ("patch_layer_probe", STAGES, {}, {}, NOBODY, OLDEST, "0.5.17"),
    ("patch_window_pool", STAGES, {}, {}, NOBODY | {"shape": GPT_OSS}, OLDEST, NEWEST),
    ("patch_abort", STAGES, {}, {}, NOBODY, OLDEST, "0.5.15.post1"),
    ("partition", EXPERTS, {}, {"SGLANG_PP_LAYER_PARTITION": "31,30"}, {}, OLDEST, "0.5.18"),
    ("dense_tensor_size", EXPERTS, {"--moe-dense-tp-size": 8}, {}, {}, OLDEST, "0.5.12.post1"),
    ("all_to_all_runner", LINKED, GROUPS, {}, {}, OLDEST, "0.5.12.post1"),
    (
        "all_to_all_runner",
        LINKED,
        GROUPS | {"--moe-runner-backend": "flashinfer_cutedsl"},
        {},
        {},
        OLDEST,
        "0.5.12.post1",
    ),
    (
        "all_to_all_runner",
        LINKED,
        GROUPS | {"--moe-runner-backend": "flashinfer_trtllm_routed"},
        {},
        {},
        OLDEST,
        "0.5.14",
    ),
    ("all_to_all_runner", LINKED, GROUPS | {"--moe-runner-backend": "deep_gemm"}, {}, {}, OLDEST, "0.5.18"),
    ("all_to_all_groups", LINKED, {"--moe-a2a-backend": "flashinfer"}, {}, {}, "0.5.13", NEWEST),
    (
        "two_batches",
        EXPERTS,
        {"--enable-two-batch-overlap": True, "--enable-dp-attention": True, "--dp-size": 2},
        {},
        {},
        OLDEST,
        "0.5.14",
    ),
    ("attention_hardware", EXPERTS, {"--attention-backend": "trtllm_mha"}, {}, {"shape": LLAMA}, OLDEST, "0.5.18"),
    ("attention_hardware", EXPERTS, {"--attention-backend": "fa4"}, {}, {}, OLDEST, "0.5.17"),
    ("hybrid_attention", LINKED, {"--attention-backend": "flashinfer"}, {}, NEXT, "0.5.16", "0.5.20"),
    ("hybrid_attention", EXPERTS, {"--attention-backend": "fa4"}, {}, NEXT, "0.5.16", NEWEST),
    ("fp4_runner", EXPERTS, {}, {}, {"shape": NVFP4}, OLDEST, "0.5.12.post1"),
    ("quantization", LINKED, {"--quantization": "modelopt_fp4"}, {}, {"shape": DEEPSEEK}, OLDEST, "0.5.17"),
    ("quantization", LINKED, {"--quantization": "quark_mxfp4"}, {}, {}, OLDEST, "0.5.16"),
    ("deep_gemm", EXPERTS, {}, DEEP_GEMM, {"shape": DEEPSEEK}, "0.5.11", "0.5.12.post1"),
    ("deep_gemm", EXPERTS, {}, DEEP_GEMM, {"shape": DEEPSEEK, "capability": 121}, OLDEST, "0.5.20"),
    ("nccl_graphs", EXPERTS, {}, {"NCCL_GRAPH_REGISTER": "1"}, {}, OLDEST, "0.5.22"),
    (
        "nccl_graphs",
        EXPERTS,
        {"--disaggregation-mode": "decode", "--enable-dp-attention": True, "--dp-size": 8},
        {"NCCL_GRAPH_REGISTER": "1"},
        {},
        OLDEST,
        "0.5.19",
    ),
    (
        "nccl_graphs",
        EXPERTS,
        {"--enable-tp-lm-head-all-to-all": True},
        {"NCCL_GRAPH_REGISTER": "1"},
        {},
        OLDEST,
        "0.5.19",
    ),
    ("async_depth_nodes", STAGES, NODES, {}, {}, OLDEST, "0.5.22"),
    ("prefill_graphs", EXPERTS, {"--cuda-graph-backend-prefill": "breakable"}, {}, {}, "0.5.14", "0.5.16"),
)


def judged(launch: Launch) -> list[Finding]:
    return launch_rules.judge(launch)


def ids(launch: Launch) -> list[str]:
    return [finding.id.removeprefix("launch.") for finding in judged(launch)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_change_one_finding(case: Case) -> None:
    (finding,) = judged(case.launch)
    assert finding.id == f"launch.{case.rule}"
    assert finding.severity == case.severity
    assert finding.seen.endswith(f"; {case.fails}")
    assert not finding.remedy.endswith(".")
    assert finding.source or case.rule == "other_nodes"


@pytest.mark.parametrize(("base", "flags", "environment", "fields"), FINE)
def test_what_is_fine_stays_fine(base: Launch, flags: Any, environment: Any, fields: Any) -> None:
    assert ids(changed(base, flags, environment, **fields)) == []


@pytest.mark.parametrize("border", BORDERS, ids=lambda border: f"{border[0]} {border[-2]} to {border[-1]}")
def test_a_rule_holds_from_one_release_to_another(border: tuple[Any, ...]) -> None:
    rule, base, flags, environment, fields, first, last = border
    releases = list(flag_tables.history())
    launches = {release: changed(base, flags, environment, release=release, **fields) for release in releases}
    found = [release for release, launch in launches.items() if rule in ids(launch)]
    assert found == releases[releases.index(first) : releases.index(last) + 1]


@pytest.mark.parametrize(
    ("case", "since"),
    [
        (case("expert_size", B, EXPERTS, {"--ep-size": 3}), "0.5.21"),
        (case("all_to_all_hardware", C, EXPERTS, {"--moe-a2a-backend": "megamoe"}), "0.5.21"),
        (
            case("graph_padding", C, STAGES, {"--disable-cuda-graph-padding": True, "--enable-torch-compile": True}),
            "0.5.12",
        ),
    ],
)
def test_since_when_the_engine_says_so_earlier(case: Case, since: str) -> None:
    releases = list(flag_tables.history())
    told = [
        release
        for release in releases
        if any(
            finding.id.endswith(case.rule) and finding.seen.endswith(case.fails)
            for finding in judged(changed(case.base, case.flags, release=release))
        )
    ]
    assert told == releases[releases.index(since) :]


@pytest.mark.parametrize("rule", launch_rules.RULES, ids=lambda rule: rule.__name__)
def test_every_rule_is_what_finds_its_cases(rule: launch_rules.Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a rule, none of its cases is found, and each rule has a case."""
    own = [case for case in CASES if case.rule == rule.__name__]
    assert own
    monkeypatch.setattr(launch_rules, "RULES", tuple(other for other in launch_rules.RULES if other is not rule))
    assert [ids(case.launch) for case in own] == [[]] * len(own)


def test_every_rule_of_the_room_is_in_the_tuple() -> None:
    made = {
        function
        for function in vars(launch_rules).values()
        if getattr(function, "__annotations__", {}) == {"launch": "Launch", "return": "Verdict | None"}
    }
    assert made == set(launch_rules.RULES)


def test_every_rule_names_its_source() -> None:
    assert [rule.__name__ for rule in launch_rules.RULES if "Source:" not in (rule.__doc__ or "")] == []


@pytest.mark.parametrize("release", ["", *RELEASES])
def test_no_release_and_no_facts_make_a_rule_fail(release: str) -> None:
    """Nothing is known but the flags; what is limited to releases is silent without one."""
    table = flag_tables.history()[release] if release else FlagTable([])
    for flags in ({}, dict(STAGES.flags), {"--pp-size": "8", "--speculative-algorithm": "EAGLE", "--dp-size": "x"}):
        judged(Launch(release, table, flags))
    assert judged(Launch(release, table, {})) == []


def test_without_a_release_its_own_limits_are_silent() -> None:
    launch = changed(STAGES, {"--speculative-algorithm": "EAGLE", "--moe-dense-tp-size": 2}, release="", patches=None)
    assert ids(launch) == []


def test_without_a_table_other_spellings_are_known() -> None:
    launch = Launch("0.5.12.post1", FlagTable([]), {"--pipeline-parallel-size": "8", "--ep": "8", "--trust": False})
    assert (launch.pipeline, launch.expert, launch.given("--trust")) == (8, 8, None)


def test_values_are_read_as_a_unit_has_them() -> None:
    texts = changed(STAGES, {name: str(value) for name, value in STAGES.flags.items()})
    assert ids(texts) == []
    assert ids(changed(STAGES, {"--pp-async-batch-depth": "8", "--cuda-graph-bs": "1 2 64"})) == [
        "graph_batch",
        "async_depth",
        "running_requests",
    ]


def test_what_follows_from_the_flags() -> None:
    launch = Launch("0.5.12.post1", STAGES.table, {"--dp-size": 2, "--pp-size": 8, "--max-running-requests": 4})
    assert (launch.attention_data, launch.replicas, launch.micro_batch, launch.slots) == (1, 2, 1, 8)
    groups = changed(launch, {"--enable-dp-attention": True})
    assert (groups.attention_data, groups.replicas) == (2, 1)
    assert changed(launch, {"--attn-dp-size": 4, "--dp-size": 1}, release="0.5.22").attention_data == 4


@pytest.mark.parametrize(
    ("model", "capability", "backend"),
    [
        (KIMI, 120, "triton"),
        (KIMI, 121, "triton"),
        (KIMI, 89, "triton"),
        (KIMI, 90, "fa3"),
        (KIMI, 100, ""),
        (KIMI, None, ""),
        (KIMI, 75, ""),
        (GPT_OSS, 120, "triton"),
        (LLAMA, 120, ""),
        (LLAMA, 90, "fa3"),
        (None, 120, ""),
    ],
)
def test_the_attention_backend_that_sglang_takes(
    model: models.Shape | None, capability: int | None, backend: str
) -> None:
    launch = changed(STAGES, {"--attention-backend": None}, shape=model, capability=capability)
    assert launch.backends == (backend, backend)


def test_the_flag_for_graphs_is_the_release_s_own() -> None:
    for name, release in (("--cuda-graph-max-bs", "0.5.13.post1"), ("--cuda-graph-max-bs-decode", "0.5.14")):
        for size, other in ((32, "8: graphs that are never used take memory"), (4, "8")):
            flags = {"--cuda-graph-max-bs": None, "--cuda-graph-max-bs-decode": None, name: size}
            (finding,) = judged(changed(STAGES, flags, release=release))
            assert finding.remedy == f"Set {name} to {other}"


def test_other_nodes_are_told_by_release_and_patches() -> None:
    (finding,) = judged(changed(STAGES, others=(("0.5.12.post1", PATCHES), ("0.5.12", frozenset()))))
    assert finding.seen.startswith(
        "another node of the instance has 0.5.12 with no patches, this one 0.5.12.post1 with api-"
    )
    (finding,) = judged(changed(EXPERTS, patches=frozenset(), others=(("0.5.12", frozenset({"b", "a"})),)))
    assert "has 0.5.12 with a, b, this one 0.5.12.post1 with no patches" in finding.seen


def test_a_patch_that_nobody_looked_for_is_a_warning() -> None:
    findings = judged(changed(STAGES, patches=None, shape=GPT_OSS))
    assert [(finding.id, finding.severity) for finding in findings] == [
        ("launch.patch_layer_probe", "warning"),
        ("launch.patch_window_pool", "warning"),
        ("launch.patch_abort", "warning"),
    ]
    assert "is not known to be there" in findings[0].seen


def told(**fields: Any) -> str:
    flags = {"--pp-size": fields.pop("stages", 8)}
    missing = PATCHES - {"triton-layer-probe"}
    environment = fields.pop("environment", None)
    return judged(changed(STAGES, flags, environment, patches=missing, **fields))[0].seen


def test_the_layer_probe_says_which_stages_fail() -> None:
    """Computed with the functions of 0.5.12.post1: 61 layers, 8 stages."""
    assert "stage(s) 2 to 7 of 8 end with IndexError" in told()
    assert "stages of 30,31 layers start only because Python counts from the end" in told(stages=2)
    assert "stage(s) 1 of 2 end with IndexError" in told(stages=2, environment={"SGLANG_PP_LAYER_PARTITION": "31,30"})
    assert "stage(s) 2, 3 of 4 end" in told(stages=4)
    assert "stages from the third on" in told(shape=None)
    # A stage that starts as far in as it has layers reads its first one.
    assert "stages of 30,30 layers start only" in told(stages=2, shape=replace(KIMI, layers=KIMI.layers[:60]))


@pytest.mark.parametrize(
    ("number", "word"),
    [("0", "LOC"), ("1", "PIX"), ("2", "PXB"), ("3", "PHB"), ("4", "SYS"), ("5", "SYS"), ("9", "SYS")],
)
def test_the_level_is_told_as_a_word(number: str, word: str) -> None:
    (finding,) = judged(changed(STAGES, None, {"NCCL_P2P_LEVEL": number}))
    assert f"the number {number}, which NCCL takes for {word}" in finding.seen
    assert f"NCCL_P2P_LEVEL={word}" in finding.remedy


# Field cases of this kind, by their number.


def test_c14_what_pipelines_exclude_and_experts_that_do_not_fit() -> None:
    eagle = {"--speculative-algorithm": "EAGLE"}
    assert ids(changed(STAGES, eagle)) == ["pipeline_speculation"]
    assert ids(changed(STAGES, eagle, release="0.5.23")) == ["pipeline_speculation"]
    assert ids(changed(STAGES, eagle | {"--disaggregation-mode": "prefill"}, release="0.5.23")) == []
    (finding,) = judged(changed(STAGES, {"--ep-size": 8}))
    assert finding.remedy.startswith("Use --tp-size 8")
    assert ids(EXPERTS) == []
    (finding,) = judged(changed(STAGES, None, {"SGLANG_PP_LAYER_PARTITION": "8,8,8,8,8,8,8,7"}))
    assert "63 layers for the model's 61" in finding.seen


def test_c15_backends_of_the_data_centre_on_sm120() -> None:
    (whole,) = judged(changed(EXPERTS, {"--attention-backend": "trtllm_mla"}))
    assert whole.seen.startswith("--attention-backend trtllm_mla")
    split = {
        "--attention-backend": None,
        "--prefill-attention-backend": "trtllm_mla",
        "--decode-attention-backend": "triton",
    }
    (prefill,) = judged(changed(EXPERTS, split))
    assert prefill.seen.startswith("--prefill-attention-backend trtllm_mla: prefill has no such kernel on SM120")
    assert prefill.remedy == "Set --prefill-attention-backend to triton"
    assert ids(changed(LINKED, {"--attention-backend": "trtllm_mla"})) == []
    assert changed(EXPERTS, {"--attention-backend": None}).backends == ("triton", "triton")


def test_c25_graphs_and_the_packed_slot_are_blamed_and_depth_is_not() -> None:
    flags = {
        "--disable-cuda-graph": True,
        "--pp-async-batch-depth": 0,
        "--max-running-requests": 64,
        "--pp-max-micro-batch-size": None,
        "--cuda-graph-max-bs": None,
    }
    findings = judged(changed(STAGES, flags, concurrency=None))
    assert [finding.id for finding in findings] == ["launch.graphs_disabled", "launch.packed_slot"]
    assert "8 by default (64 running requests, 8 stages)" in findings[1].seen
    assert not any("depth" in str(finding) for finding in findings)


def test_c28_a_slow_disk_stops_tensor_ranks_only() -> None:
    slow = {"load_bytes": 594_000_000_000, "read_rate": 900.0}
    (finding,) = judged(changed(EXPERTS, **slow))
    assert "take 660 s" in finding.seen
    assert ids(changed(STAGES, **slow)) == []
    assert ids(changed(EXPERTS, **slow | {"read_rate": 6500.0})) == []


def test_sizes_beyond_any_node_are_judged_at_once() -> None:
    assert "launch.gpus" in [finding.id for finding in judged(changed(STAGES, {"--tp-size": 10**20}))]
    assert "launch.gpus" in [finding.id for finding in judged(changed(STAGES, {"--pp-size": 10**20}))]


@pytest.mark.parametrize("stages", [62, 10**9])
def test_more_stages_than_layers(stages: int) -> None:
    """Told in one line, however many there are, and by no other rule about layers."""
    launch = changed(STAGES, {"--pp-size": stages}, patches=frozenset())
    found = {finding.id: finding for finding in judged(launch)}
    assert "launch.partition" not in found
    assert found["launch.stages"].seen.startswith(f"61 layers leave some of {min(stages, 65536)} stages without one")
    assert max(len(finding.seen) for finding in found.values()) < 300


@pytest.mark.parametrize("model", [KIMI, LLAMA, None], ids=["INT4", "BF16", "unknown"])
def test_more_expert_ranks_than_tensor_ranks(model: models.Shape | None) -> None:
    """Whatever the weights are: SGLang checks it for FP8 alone, and divides by zero."""
    found = judged(changed(EXPERTS, {"--tp-size": 2, "--ep-size": 4}, shape=model))
    (finding,) = [finding for finding in found if finding.id == "launch.expert_size"]
    assert (finding.severity, finding.remedy.split(",")[0]) == ("error", "Use --tp-size 4")
    assert Fails.BUILD in finding.seen


@pytest.mark.parametrize(
    ("capability", "release", "flags", "padding"),
    [
        (90, "0.5.12.post1", {}, (1, 64)),
        (90, "0.5.23", {}, (1, 64)),
        (90, "0.5.12.post1", {"--moe-runner-backend": "flashinfer_mxfp4"}, (256, 128)),
        (100, "0.5.12.post1", {}, (256, 256)),
        (100, "0.5.17", {}, (256, 128)),
        (120, "0.5.12.post1", {}, (1, 64)),
        (120, "0.5.14", {}, (256, 128)),
        (120, "0.5.23", {}, (256, 128)),
        (120, "0.5.12.post1", {"--moe-runner-backend": "marlin"}, (1, 64)),
        (None, "0.5.23", {}, (256, 256)),
        (90, "", {}, (256, 256)),
    ],
)
def test_how_far_mxfp4_experts_are_padded(
    capability: int | None, release: str, flags: dict[str, Any], padding: tuple[int, int]
) -> None:
    launch = changed(EXPERTS, flags, capability=capability, release=release, shape=GPT_OSS)
    assert launch.mxfp4_padding == padding


def test_what_a_draft_model_is() -> None:
    own = changed(EXPERTS, {"--speculative-algorithm": "nextn"}, shape=DEEPSEEK)
    assert (own.speculation, own.own_draft) == ("NEXTN", True)
    assert changed(own, {"--speculative-draft-model-path": "/srv/kimi"}).own_draft
    assert not changed(own, {"--speculative-draft-model-path": "/srv/draft"}).own_draft
    assert not changed(own, {"--speculative-algorithm": "EAGLE3"}).own_draft
    assert not replace(own, shape=KIMI).own_draft


def test_whether_images_are_encoded() -> None:
    assert changed(EXPERTS).images
    assert not changed(EXPERTS, {"--language-only": True}).images
    assert not changed(EXPERTS, {"--language-model-only": True}, release="0.5.23").images
    assert not changed(EXPERTS, {"--disaggregation-mode": "decode"}).images
    assert not changed(EXPERTS, shape=DEEPSEEK).images
