# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which kernels an engine compiles at first use, by the layouts that the plan chooses among."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import shapes
from ansible_collections.inference.sglang.plugins.module_utils import models, warmup
from ansible_collections.inference.sglang.plugins.module_utils.launch_rules import Launch
from ansible_collections.inference.sglang.plugins.plugin_utils import flag_tables

OLD, NEW = "0.5.12.post1", "0.5.23"


def shape(name: str) -> models.Shape:
    return models.read(shapes.config(name))[0]


KIMI, DEEPSEEK, GPT_OSS, LLAMA, QWEN = map(
    shape, ("kimi-k2.5", "deepseek-v3", "gpt-oss-120b", "llama-3.1-8b", "qwen3-235b-a22b")
)
INTEGER_MLP = replace(LLAMA, weight_format=models.Format("int4", 4, 1, 128, 16))
INTEGER_MLP = replace(
    INTEGER_MLP, layers=tuple(replace(layer, dense=models.Size(1000, 520)) for layer in INTEGER_MLP.layers)
)

POSITIONS = ("clamp_position(int64)", "resolve_future_token_ids(int64)")
LATENT = ("activation(bfloat16)", "fused_rope(false,64,bfloat16)", "set_mla_kv_buffer(1024,128,true)")
MARLIN = ("gptq_marlin_repack()", "moe_wna16_marlin(bfloat16)")


def launch(release: str, model: models.Shape, capability: int | None, **flags: Any) -> Launch:
    """An engine of one node; ``tp_size=8`` stands for ``--tp-size 8``."""
    names = {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
    return Launch(release, flag_tables.history()[release], names, shape=model, capability=capability)


def names(given: Launch) -> list[str]:
    return [kernel.name for kernel in warmup.kernels(given)]


@pytest.mark.parametrize(
    ("given", "ahead", "later"),
    [
        pytest.param(
            launch(OLD, KIMI, 120, tp_size=8),
            ["sampling", *POSITIONS, *LATENT, *MARLIN],
            ["norm_cute", "triton_attention"],
            id="Kimi K2, TP8 on RTX PRO 6000: no all-reduce fusion on SM120",
        ),
        pytest.param(
            launch(OLD, KIMI, 120, pp_size=8, attention_backend="triton"),
            ["sampling", "clamp_position(int64)", *LATENT, *MARLIN],
            ["norm_cute", "triton_attention"],
            id="Kimi K2, PP8 on RTX PRO 6000: stages do without the overlap schedule",
        ),
        pytest.param(
            launch(NEW, KIMI, 120, tp_size=8),
            [
                "sampling",
                "clamp_position(int64)",
                "activation(bfloat16)",
                "fused_rope(false,64,bfloat16,bfloat16)",
                "set_mla_kv_buffer(1024,128,true)",
                "gptq_marlin_repack()",
                "moe_wna16_marlin(bfloat16,false,false,true,false,true)",
                "moe_wna16_marlin(bfloat16,false,false,true,true,true)",
            ],
            ["norm_cute", "triton_attention"],
            id="Kimi K2, TP8 in another release",
        ),
        pytest.param(
            launch(OLD, DEEPSEEK, 100, tp_size=8, attention_backend="trtllm_mla"),
            ["sampling", "trtllm_comm", *POSITIONS, *LATENT],
            ["norm_cute"],
            id="DeepSeek FP8, TP8 on B200",
        ),
        pytest.param(
            launch(OLD, GPT_OSS, 90, tp_size=2),
            ["sampling", "trtllm_comm", *POSITIONS, "fused_rope(true,64,bfloat16)", "kvcache(512)"],
            ["norm_cute"],
            id="gpt-oss, TP2 on Hopper",
        ),
        pytest.param(launch(OLD, LLAMA, None, device="cpu"), [], [], id="Llama on a CPU"),
        pytest.param(launch(OLD, LLAMA, 90, device="cpu"), [], [], id="a CPU engine beside a GPU"),
    ],
)
def test_what_is_compiled_ahead_and_what_later(given, ahead, later):
    found = warmup.kernels(given)
    assert warmup.ahead(found) == ahead
    assert [kernel.name for kernel in found if kernel.needs_gpu] == later
    assert all(kernel.reason and kernel.source for kernel in found)
    assert all((kernel.maker == "sglang") == ("(" in kernel.name) for kernel in found if not kernel.needs_gpu)


@pytest.mark.parametrize(
    ("given", "module"),
    [
        (launch(OLD, KIMI, 90, tp_size=8), "trtllm_comm"),
        (launch("0.5.13.post1", KIMI, 100, tp_size=8), "trtllm_comm"),
        (launch("0.5.14", KIMI, 100, tp_size=8), "trtllm_mnnvl_comm"),
        (launch(NEW, KIMI, 103, tp_size=8), "trtllm_mnnvl_comm"),
        (launch(NEW, KIMI, 90, tp_size=8), "trtllm_comm"),
        (launch(NEW, KIMI, 100, tp_size=8, flashinfer_allreduce_fusion_backend="trtllm"), "trtllm_comm"),
        (launch(NEW, KIMI, 90, tp_size=8, flashinfer_allreduce_fusion_backend="mnnvl"), "trtllm_mnnvl_comm"),
        (launch(NEW, KIMI, 100, tp_size=8, flashinfer_allreduce_fusion_backend="cutedsl"), ""),
        (launch(NEW, KIMI, 100, tp_size=16, nnodes=2), "trtllm_mnnvl_comm"),
        (launch(NEW, KIMI, 90, tp_size=16, nnodes=2), ""),
        (launch(OLD, KIMI, 100, tp_size=16, nnodes=2), ""),
        (launch(NEW, KIMI, 90, tp_size=16, nnodes=2, flashinfer_allreduce_fusion_backend="mnnvl"), ""),
        (launch(NEW, KIMI, 90, tp_size=16, nnodes=2, flashinfer_allreduce_fusion_backend="trtllm"), ""),
        (launch(NEW, KIMI, 120, tp_size=8, flashinfer_allreduce_fusion_backend="auto"), ""),
        (launch(NEW, KIMI, 90, pp_size=8), ""),
        (launch(NEW, KIMI, 90, tp_size=8, moe_a2a_backend="deepep"), ""),
        (launch(OLD, KIMI, 90, tp_size=8, dp_size=8, enable_dp_attention=True), ""),
        (launch(NEW, KIMI, 90, tp_size=8, attn_dp_size=2), ""),
        (launch(OLD, KIMI, 90, tp_size=8, enforce_disable_flashinfer_allreduce_fusion=True), ""),
        (launch(OLD, KIMI, 90, tp_size=8, enable_deterministic_inference=True), ""),
        (launch(OLD, LLAMA, 90, tp_size=8), ""),
        (launch(OLD, LLAMA, 90, tp_size=8, enable_flashinfer_allreduce_fusion=True), "trtllm_comm"),
        (replace(launch("0.5.17", DEEPSEEK, 90, tp_size=8), shape=replace(DEEPSEEK, architecture="Qwen9")), ""),
        (
            replace(
                launch("0.5.17", DEEPSEEK, 90, tp_size=8),
                shape=replace(DEEPSEEK, architecture="DeepseekV4ForCausalLM"),
            ),
            "",
        ),
    ],
)
def test_all_reduce_fusion(given, module):
    assert [name for name in names(given) if name.endswith("_comm")] == [module] * bool(module)


@pytest.mark.parametrize("flags", [{"sampling_backend": "pytorch"}, {"enable_deterministic_inference": True}], ids=str)
def test_pytorch_samples_without_a_kernel(flags):
    assert "sampling" not in names(launch(OLD, LLAMA, 120, **flags))


def test_norm_is_compiled_where_it_is_asked_for():
    given = replace(launch(OLD, LLAMA, 120), environment={"FLASHINFER_USE_CUDA_NORM": "1"})
    assert warmup.ahead(warmup.kernels(given))[0] == "norm"
    assert "norm_cute" not in names(given)


@pytest.mark.parametrize(
    ("given", "present", "absent"),
    [
        # Rows of the cache, by release, ranks and type.
        (launch("0.5.16", LLAMA, 90, tp_size=2), "kvcache(1024)", "activation(float16)"),
        (launch("0.5.17", LLAMA, 90, tp_size=16), "kvcache(256,256)", "kvcache(256)"),
        (launch("0.5.21", LLAMA, 90, kv_cache_dtype="fp8_e4m3"), "kvcache(1024,1024,0)", "kvcache(1024,1024)"),
        (launch(OLD, replace(LLAMA, v_head_dim=64), 90), "activation(bfloat16)", "kvcache(2048)"),
        (launch(NEW, replace(LLAMA, v_head_dim=64), 90), "kvcache(2048,1024,0)", "kvcache(2048,2048,0)"),
        (launch(NEW, LLAMA, 90, tp_size=8, attn_dp_size=4), "kvcache(1024,1024,0)", "kvcache(256,256,0)"),
        (launch("0.5.11", KIMI, 90), "fused_rope(false,64,bfloat16)", "set_mla_kv_buffer(1024,128,true)"),
        (launch(OLD, KIMI, 80), "clamp_position(int64)", "set_mla_kv_buffer(1024,128,true)"),
        (launch(OLD, KIMI, 120, kv_cache_dtype="fp8_e4m3"), "sampling", "set_mla_kv_buffer(1024,128,true)"),
        # Rotation and FP8 in FlashInfer.
        (launch(OLD, KIMI, 100, attention_backend="trtllm_mla", kv_cache_dtype="fp8_e4m3"), "rope", "kvcache(1152)"),
        (launch(OLD, KIMI, 100, attention_backend="trtllm_mla"), "sampling", "rope"),
        (launch(OLD, KIMI, 120, attention_backend="triton", kv_cache_dtype="fp8_e4m3"), "sampling", "rope"),
        # Only models that are known to rotate the whole head.
        (launch(OLD, replace(LLAMA, head_dim=80), 90), "sampling", "fused_rope(true,80,bfloat16)"),
        (launch(OLD, replace(LLAMA, architecture="Glm4ForCausalLM"), 90), "sampling", "fused_rope(true,128,bfloat16)"),
        (launch(OLD, LLAMA, 90, dtype="half"), "fused_rope(true,128,float16)", "fused_rope(true,128,bfloat16)"),
        (launch("0.5.16", KIMI, 90), "fused_rope(false,64,bfloat16)", "fused_rope(false,64,bfloat16,bfloat16)"),
        (launch("0.5.17", KIMI, 90), "fused_rope(false,64,bfloat16,bfloat16)", "fused_rope(false,64,bfloat16)"),
        # Marlin.
        (launch("0.5.17", KIMI, 120, tp_size=8), "moe_wna16_marlin(bfloat16,false,false)", "gptq_marlin(bfloat16)"),
        (
            launch(NEW, KIMI, 120, tp_size=8, ep_size=8),
            "moe_wna16_marlin(bfloat16,true,false,false,true,false)",
            "moe_wna16_marlin(bfloat16,false,false,true,true,true)",
        ),
        (launch(OLD, KIMI, 100, tp_size=8), "sampling", "moe_wna16_marlin(bfloat16)"),
        (launch(OLD, KIMI, 100, moe_runner_backend="marlin"), "moe_wna16_marlin(bfloat16)", "fused_moe_marlin"),
        (launch(OLD, KIMI, 120, moe_runner_backend="triton"), "sampling", "moe_wna16_marlin(bfloat16)"),
        (launch(OLD, QWEN, 120), "sampling", "moe_wna16_marlin(bfloat16)"),
        (launch(OLD, INTEGER_MLP, 120), "gptq_marlin(bfloat16)", "moe_wna16_marlin(bfloat16)"),
        (launch(OLD, INTEGER_MLP, 120), "gptq_marlin_repack()", "awq_marlin_repack()"),
        (launch(OLD, INTEGER_MLP, 120, quantization="awq_marlin"), "awq_marlin_repack()", "gptq_marlin_repack()"),
        # What follows the GPU.
        (launch(OLD, KIMI, 100, moe_runner_backend="flashinfer_trtllm"), "fused_moe_trtllm", "fused_moe_cutlass"),
        (launch(OLD, LLAMA, 100, moe_runner_backend="flashinfer_trtllm"), "sampling", "fused_moe_trtllm"),
        (launch(OLD, LLAMA, 120, attention_backend="flashinfer"), "batch_attention", "triton_attention"),
        (launch(OLD, KIMI, 120, attention_backend="flashinfer"), "batch_mla", "triton_attention"),
        (launch(OLD, LLAMA, 120, disable_overlap_schedule=True), "sampling", "resolve_future_token_ids(int64)"),
    ],
)
def test_one_kernel(given, present, absent):
    found = names(given)
    assert present in found
    assert absent not in found
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("missing", [{"release": ""}, {"shape": None}, {"capability": None}], ids=str)
def test_nothing_is_claimed_of_what_is_not_known(missing):
    given = launch(OLD, LLAMA, 120)
    assert names(given)
    assert warmup.kernels(replace(given, **missing)) == ()


@pytest.mark.parametrize(
    ("capability", "listed"),
    [(89, "8.9"), (90, "9.0a"), (100, "10.0a"), (103, "10.3a"), (120, "12.0f"), (121, "12.1a")],
)
def test_architectures_in_flashinfers_words(capability, listed):
    assert warmup.architecture(capability) == listed
