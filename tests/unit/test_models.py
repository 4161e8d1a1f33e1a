# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A model's shape against what its makers publish, and what is said about a model that cannot be sized.

The files of ``shapes`` are written for the plan and these tests: the keys that count, with the values of the models
that they are named after.
"""

from __future__ import annotations

import copy
import json
import random
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import shapes
from ansible_collections.inference.sglang.plugins.module_utils import models
from ansible_collections.inference.sglang.plugins.module_utils.models import Format, ModelError, Shape, Size

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def shape(name: str, **changes: Any) -> Shape:
    return models.read(shapes.config(name) | changes)[0]


def fault(values: object, **arguments: Any) -> models.Finding:
    with pytest.raises(ModelError) as raised:
        models.read(values, **arguments)  # type: ignore[arg-type]
    assert len(raised.value.findings) == 1
    assert str(raised.value) == str(raised.value.findings[0])
    return raised.value.findings[0]


# Published: moonshotai/Kimi-K2-Instruct (1T, 32B), deepseek-ai/DeepSeek-V3 (671B, 37B; 14B of MTP besides),
# Qwen/Qwen3-235B-A22B (235B, 22B), openai/gpt-oss-120b (117B, 5.1B), meta-llama/Llama-3.1-8B (8.03B) and
# Llama-3.2-1B (1.24B): their model cards on Hugging Face.
@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("kimi-k2.5", 1.027e12, 32e9),
        ("deepseek-v3", 671e9, 37e9),
        ("qwen3-235b-a22b", 235e9, 22e9),
        ("gpt-oss-120b", 117e9, 5.1e9),
        ("llama-3.1-8b", 8.03e9, 7.5e9),  # active: all but the rows of the embedding
        ("llama-3.2-1b", 1.24e9, 1.24e9),
    ],
)
def test_parameters_are_those_published(name: str, total: float, active: float) -> None:
    found = shape(name)
    assert found.size.parameters == pytest.approx(total, rel=0.005)
    assert found.active_parameters == pytest.approx(active, rel=0.025)


# Sizes of the checkpoints: 595 GB of Kimi K2.5 in INT4, 689 GB of DeepSeek-V3 with its MTP layer, 65.2 GB of gpt-oss.
@pytest.mark.parametrize(
    ("name", "stored", "weights"),
    [
        ("kimi-k2.5", 595e9, Format("int4", 4, 1, 32, 16)),
        ("deepseek-v3", 689e9, Format("fp8", 8, 128, 128, 32)),
        ("gpt-oss-120b", 65.2e9, Format("mxfp4", 4, 1, 32, 8)),
        ("qwen3-235b-a22b", 470e9, Format("bfloat16", 16)),
    ],
)
def test_bytes_are_those_of_the_checkpoint(name: str, stored: float, weights: Format) -> None:
    found = shape(name)
    assert found.size.bytes + found.draft.bytes == pytest.approx(stored, rel=0.003)
    assert found.weight_format == weights


def test_a_draft_layer_is_not_served() -> None:
    found = shape("deepseek-v3")
    assert found.draft.parameters == pytest.approx(14e9, rel=0.05)
    joined = 7168 * 2 * 7168 + 2 * 129280 * 7168
    assert found.draft.parameters == found.layers[-1].size.parameters + joined
    assert shape("deepseek-v3", num_nextn_predict_layers=0).size == found.size


def test_a_layer_of_kimi_is_told_apart() -> None:
    found = shape("kimi-k2.5")
    assert (found.dense_layers, found.moe_layers, len(found.layers)) == (1, 60, 61)
    first, second = found.layers[:2]
    assert first.dense.bytes == 3 * 7168 * 18432 * 2
    assert (first.routed, first.shared, second.dense) == (Size(), Size(), Size())
    # INT4 in groups of 32 with a scale of 16 bits; what the config ignores stays at 16 bits.
    assert second.routed == Size(384 * 3 * 7168 * 2048, 384 * 3 * 7168 * 2048 * 9 // 16)
    assert second.shared.bytes == 3 * 7168 * 2048 * 2
    heads = 1536 * 64 * 192 + 512 * 64 * 256 + 64 * 128 * 7168
    assert second.attention == Size(heads, heads * 2)
    everywhere = 7168 * 1536 + 7168 * 576 + 384 * 7168
    assert second.replicated == Size(everywhere, everywhere * 2)
    assert second.absorbed == Size(0, 512 * 64 * 256 * 2)
    assert second.key_value == Size()
    assert found.embedding == found.head == Size(163840 * 7168, 163840 * 7168 * 2)
    assert found.vision.bytes == pytest.approx(0.93e9, rel=0.01)
    assert (found.attention, found.kv_rank, found.rope_dim, found.head_dim, found.v_head_dim) == (
        "mla",
        512,
        64,
        192,
        128,
    )
    assert (found.context, found.dtype, found.architecture) == (262144, "bfloat16", "KimiK25ForConditionalGeneration")


def test_a_layer_with_grouped_queries_is_told_apart() -> None:
    found = shape("qwen3-235b-a22b")
    layer = found.layers[0]
    assert layer.attention.parameters == 2 * 64 * 128 * 4096
    assert layer.key_value.parameters == 2 * 4 * 128 * 4096
    assert layer.replicated.parameters == 128 * 4096
    assert layer.routed.parameters == 128 * 3 * 4096 * 1536
    assert (layer.shared, layer.absorbed, layer.window) == (Size(), Size(), 0)
    assert (found.dense_layers, found.moe_layers, found.width) == (0, 94, 12288)
    assert (found.attention, found.kv_rank, found.rope_dim, found.query_rank, found.v_head_dim) == ("gqa", 0, 0, 0, 128)
    assert (found.shared_experts, found.shared_width, found.draft, found.vision) == (0, 0, Size(), Size())
    assert shape("qwen3-235b-a22b", intermediate_size=None).width == 0


def test_a_model_without_experts_has_none() -> None:
    found = shape("llama-3.1-8b", quantization_config={"quant_method": "fp8", "ignore": ["re:.*experts.*"]})
    assert (found.experts, found.experts_per_token, found.expert_width, found.head_dim) == (0, 0, 0, 128)
    assert found.weight_format == Format("fp8", 8)


@pytest.mark.parametrize(
    ("vision", "parameters"),
    [
        ({}, 0),
        ({"depth": 2, "hidden_size": 8}, 2 * (4 * 64 + 2 * 8 * 32) + 32 * (32 + 4096)),
        ({"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 10}, 4 * 64 + 2 * 80 + 32 * (32 + 4096)),
    ],
)
def test_a_vision_tower(vision: dict[str, int], parameters: int) -> None:
    assert shape("llama-3.1-8b", vision_config=vision).vision == Size(parameters, 2 * parameters)


def test_a_step_reads_more_experts_the_larger_the_batch() -> None:
    found = shape("kimi-k2.5")
    assert found.distinct_experts(1) == pytest.approx(8)
    assert found.distinct_experts(2) == pytest.approx(16 - 8 * 8 / 384)
    assert found.distinct_experts(10_000) == pytest.approx(384)
    routed = sum(layer.routed.bytes for layer in found.layers)
    everything = found.size.bytes - found.embedding.bytes - found.vision.bytes
    assert found.read_bytes() == everything - routed + round(routed * 8 / 384)
    assert found.read_bytes(100_000) == everything
    assert found.read_bytes(8) == everything - routed + round(routed * found.distinct_experts(8) / 384)
    assert replace(found, head=Size(1, 2)).read_bytes() == found.read_bytes() - found.head.bytes + 2
    assert replace(found, head=Size(1, 2)).active_parameters == found.active_parameters - found.head.parameters + 1
    dense = shape("llama-3.2-1b")
    assert (dense.distinct_experts(5), dense.read_bytes(5)) == (0, dense.size.bytes)


def test_a_tied_head_is_read_and_not_stored_twice() -> None:
    tied, apart = shape("llama-3.2-1b"), shape("llama-3.2-1b", tie_word_embeddings=False)
    assert (tied.tied, apart.tied) == (True, False)
    assert apart.size.bytes - tied.size.bytes == 128256 * 2048 * 2
    assert apart.read_bytes() == tied.read_bytes() == tied.size.bytes


# 0.53 GB for 8050 tokens of Kimi K2 at tensor size 8 (log in sgl-project/sglang#13466), 16.46 GB for 367404 tokens of
# Qwen3-235B-A22B at tensor size 4 (vllm-project/vllm#21348); SGLang's GB are GiB.
@pytest.mark.parametrize(
    ("name", "tensor", "tokens", "gib"), [("kimi-k2.5", 8, 8050, 0.53), ("qwen3-235b-a22b", 4, 367404, 16.46)]
)
def test_the_cache_is_as_large_as_logged(name: str, tensor: int, tokens: int, gib: float) -> None:
    found = shape(name)
    assert tokens * found.kv_bytes(tensor=tensor) * len(found.layers) / 2**30 == pytest.approx(gib, abs=0.011)


@pytest.mark.parametrize(
    ("kv_type", "tensor", "expected"),
    [
        ("auto", 1, 4 * 256 * 2),
        ("bf16", 2, 2 * 256 * 2),
        ("bfloat16", 4, 256 * 2),
        ("fp8_e4m3", 1, 4 * 256),
        ("fp8_e5m2", 8, 256),  # every rank holds one head at least
        ("fp4_e2m1", 1, 4 * 256 * 9 // 16),
    ],
)
def test_cached_heads_are_divided_down_to_one(kv_type: str, tensor: int, expected: int) -> None:
    assert shape("qwen3-235b-a22b").kv_bytes(kv_type, tensor) == expected


def test_the_latent_is_on_every_rank() -> None:
    found = shape("deepseek-v3")
    assert found.kv_bytes("auto", 1) == found.kv_bytes("auto", 8) == 2 * 576
    assert found.kv_bytes("fp8_e4m3", 8) == 576


def test_an_unknown_cache_type_is_refused() -> None:
    with pytest.raises(ModelError) as raised:
        shape("llama-3.1-8b").kv_bytes("int3")
    (finding,) = raised.value.findings
    assert (finding.id, "int3" in finding.seen, "fp8_e4m3" in finding.remedy) == ("model.kv_type", True, True)


def test_a_sliding_window_caps_what_is_read() -> None:
    found = shape("gpt-oss-120b")
    assert [layer.window for layer in found.layers[:4]] == [128, 0, 128, 0]
    assert found.split_pool
    a_token = found.kv_bytes()
    assert found.cached_bytes(100) == 36 * 100 * a_token
    assert found.cached_bytes(1000) == (18 * 128 + 18 * 1000) * a_token
    assert found.cached_bytes(1000, "fp8_e4m3", 8) == (18 * 128 + 18 * 1000) * a_token // 16


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 4096}, [4096] * 32),
        ({"sliding_window": 4096, "use_sliding_window": False}, [0] * 32),
        ({"sliding_window": 4096, "max_window_layers": 30}, [0] * 30 + [4096] * 2),
        ({"sliding_window": None}, [0] * 32),
    ],
)
def test_windows_without_a_list_of_layers(changes: dict[str, Any], windows: list[int]) -> None:
    found = shape("llama-3.1-8b", **changes)
    assert [layer.window for layer in found.layers] == windows
    assert not found.split_pool


@pytest.mark.parametrize(
    ("changes", "sparse"),
    [
        ({"mlp_only_layers": [0, 3]}, [1, 2, 4, 5]),
        ({"decoder_sparse_step": 3}, [2, 5]),
        ({"first_k_dense_replace": 2}, [2, 3, 4, 5]),
        ({"moe_layer_freq": 3}, [0, 3]),
    ],
)
def test_which_layers_have_experts(changes: dict[str, Any], sparse: list[int]) -> None:
    found = shape("qwen3-235b-a22b", num_hidden_layers=6, **changes)
    assert [i for i, layer in enumerate(found.layers) if layer.routed.parameters] == sparse
    assert all(bool(layer.dense.parameters) != bool(layer.routed.parameters) for layer in found.layers)


def test_other_spellings_of_experts() -> None:
    mixtral = {
        "architectures": ["MixtralForCausalLM"],
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "vocab_size": 32000,
        "max_position_embeddings": 32768,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    found, findings = models.read(mixtral)
    # 46.7B of which 12.9B are active: mistral.ai/news/mixtral-of-experts.
    assert found.size.parameters == pytest.approx(46.7e9, rel=0.002)
    assert found.active_parameters == pytest.approx(12.9e9, rel=0.02)
    assert (found.expert_width, found.dtype, findings) == (14336, "bfloat16", [])
    shared = shape("qwen3-235b-a22b", shared_expert_intermediate_size=5632)
    assert shared.layers[0].shared.parameters == 3 * 5632 * 4096
    assert shape("deepseek-v3", q_lora_rank=None).layers[0].attention.parameters == (
        7168 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    )


@pytest.mark.parametrize("dtype", ["dtype", "torch_dtype"])
def test_weights_are_served_in_16_bits(dtype: str) -> None:
    bare = {key: value for key, value in shapes.config("llama-3.1-8b").items() if key != "torch_dtype"}
    half, full = models.read({**bare, dtype: "float16"})[0], models.read({**bare, dtype: "float32"})[0]
    assert (half.dtype, full.dtype) == ("float16", "bfloat16")
    assert half.size == full.size == models.read(bare)[0].size


# Quantisation


def routed(stored: dict[str, Any], **arguments: Any) -> Format:
    return models.read(shapes.config("qwen3-235b-a22b") | {"quantization_config": stored}, **arguments)[0].weight_format


def packed(**weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (packed(num_bits=4, type="int", group_size=128), Format("int4", 4, 1, 128, 16)),
        (packed(num_bits=8, type="int", strategy="channel"), Format("int8", 8, 1, 0, 16)),
        (packed(num_bits=8, type="float"), Format("fp8", 8)),
        (packed(num_bits=8, type="float", block_structure=[128, 64]), Format("fp8", 8, 128, 64, 32)),
        (packed(num_bits=4, type="float", group_size=16), Format("nvfp4", 4, 1, 16, 8)),
        (packed(num_bits=4, type="float", group_size=32), Format("mxfp4", 4, 1, 32, 8)),
        (FP8, Format("fp8", 8, 128, 128, 32)),
        ({"quant_method": "fp8"}, Format("fp8", 8)),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, Format("fp8", 8)),
        ({"quant_method": "fp8", "weight_block_size": [128, "128"]}, Format("fp8", 8)),
        ({"quant_method": "fp8", "weight_block_size": [1, 1]}, Format("fp8", 8, 1, 1, 32)),
        ({"quant_method": "fbgemm_fp8"}, Format("fp8", 8)),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, Format("int4", 4, 1, 128, 20)),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, Format("int8", 8, 1, 0, 24)),
        ({"quant_method": "mxfp4"}, Format("mxfp4", 4, 1, 32, 8)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, Format("nvfp4", 4, 1, 16, 8)),
        ({"quant_method": "modelopt_fp4", "quant_algo": "nvfp4"}, Format("nvfp4", 4, 1, 16, 8)),
        ({"quant_algo": "FP8"}, Format("fp8", 8)),
        ({"quant_method": "mxfp8"}, Format("mxfp8", 8, 1, 32, 8)),
        ({"quant_method": "w8a8_fp8"}, Format("fp8", 8)),
        ({"quant_method": "w8a8_int8"}, Format("int8", 8, 1, 0, 32)),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, Format("nf4", 4, 1, 64, 9)),
    ],
)
def test_how_weights_are_stored(stored: dict[str, Any], expected: Format) -> None:
    assert routed(stored) == expected


@pytest.mark.parametrize(
    "stored",
    [
        {"quant_method": "gguf"},
        {"quant_method": "awq"},
        {"quant_method": "awq", "bits": True},
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        {"bits": 4},
        packed(num_bits=2, type="float"),
        packed(num_bits="4", type="int"),
        {"quant_method": "compressed-tensors"},
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "a": {"targets": ["re:.*experts.*"], "weights": {"num_bits": 4, "type": "int"}},
                "b": {"targets": ["Linear"]},
            },
        },
    ],
)
def test_an_unknown_quantisation_is_refused(stored: dict[str, Any]) -> None:
    finding = fault(shapes.config("qwen3-235b-a22b") | {"quantization_config": stored})
    assert (finding.id, finding.severity) == ("model.quantization", "error")
    assert str(stored.get("quant_method", stored)) in finding.seen
    assert "set sglang_server_tuned to false" in finding.remedy


def test_bytes_of_a_matrix() -> None:
    assert Format("bfloat16", 16).size(3, 5) == Size(15, 30)
    assert Format("int4", 4, 1, 32, 16).size(2, 40) == Size(80, 40 + 2 * 2 * 2)
    assert Format("fp8", 8, 128, 128, 32).size(129, 128) == Size(129 * 128, 129 * 128 + 2 * 4)
    assert Format("int8", 8, 1, 0, 16).size(10, 64) == Size(640, 640 + 10 * 2)
    assert Format("fp8", 8).size(7, 3) == Size(21, 21)
    assert Format("int4", 4).size(1, 3) == Size(3, 2)


IGNORED = [
    (["re:.*self_attn.*"], {"attention"}),
    (["re:.*shared_experts.*"], {"shared"}),
    (["model.layers.1.self_attn*"], {"attention"}),
    (["language_model.model.layers.1.mlp.experts*"], {"routed"}),
    (["model.language_model.layers.1.mlp.experts"], {"routed"}),
    (["layers.1.mlp.shared_experts"], {"shared"}),
    (["re:language_model\\.model\\.layers\\.1\\.mlp\\.experts.*"], {"routed"}),
    (["model.layers.10.self_attn", "lm_head", "model.layers.1"], {"attention", "shared", "routed"}),
    (["model.layers.11*", "self_attn.o_proj.weight", "experts.0"], {"routed"}),
    (["mlp.gate", 7], set()),
]


@pytest.mark.parametrize("key", ["ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"])
@pytest.mark.parametrize(("patterns", "plain"), IGNORED)
def test_ignored_modules_keep_16_bits(key: str, patterns: list[object], plain: set[str]) -> None:
    stored = {"quant_method": "fp8", key: patterns}
    found = shape("deepseek-v3", num_hidden_layers=2, first_k_dense_replace=1, quantization_config=stored).layers[1]
    kept = {
        name
        for name, size in (("attention", found.attention), ("shared", found.shared), ("routed", found.routed))
        if size.bytes == size.parameters * 2
    }
    assert kept == plain
    assert all(
        size.bytes in (size.parameters, 2 * size.parameters) for size in (found.attention, found.shared, found.routed)
    )


def test_groups_of_formats_go_by_module() -> None:
    groups = {
        "experts": {"targets": ["re:.*mlp\\.experts.*"], "weights": {"num_bits": 4, "type": "int", "group_size": 32}},
        "rest": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}},
    }
    stored = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["re:.*shared.*"]}
    layer = shape("deepseek-v3", quantization_config=stored).layers[3]
    assert layer.routed.bytes == layer.routed.parameters * 9 // 16
    assert layer.attention.bytes == layer.attention.parameters
    assert layer.shared.bytes == layer.shared.parameters * 2


def test_a_broken_pattern_is_refused() -> None:
    finding = fault(shapes.config("deepseek-v3") | {"quantization_config": FP8 | {"ignore": ["re:("]}})
    assert finding.id == "model.value"
    assert "'re:('" in finding.seen


@pytest.mark.parametrize(
    ("stored", "bits"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}, 8),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"type": "float", "num_bits": 8}},
            8,
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"type": "int", "num_bits": 8}}, 16),
        # SGLang 0.5.12.post1 does not take the scheme of compressed-tensors for auto.
        (packed(num_bits=8, type="float") | {"kv_cache_scheme": {"type": "float", "num_bits": 8}}, 16),
        (FP8 | {"kv_cache_quant_algo": "FP8"}, 16),
    ],
)
def test_what_an_automatic_cache_type_means(stored: dict[str, Any], bits: int) -> None:
    found = shape("qwen3-235b-a22b", quantization_config=stored)
    assert found.kv_bytes() == 4 * 256 * bits // 8
    assert found.kv_bytes("bf16") == 4 * 256 * 2


def test_where_the_quantisation_is_read() -> None:
    own = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
    bare = shapes.config("qwen3-235b-a22b")
    assert models.read(bare, quantization=own)[0].weight_format.name == "nvfp4"
    assert models.read(bare | {"quantization_config": FP8}, quantization=own)[0].weight_format.name == "fp8"
    assert models.read(bare | {"compression_config": FP8}, quantization=own)[0].weight_format.name == "fp8"
    kimi = shapes.config("kimi-k2.5")
    assert models.read(kimi, quantization=own)[0].weight_format.name == "nvfp4"
    assert models.read(kimi | {"quantization_config": FP8})[0].weight_format.name == "fp8"


def test_packing_while_loading() -> None:
    bare = shapes.config("llama-3.1-8b")
    plain, packed_online = models.read(bare)[0], models.read(bare, online="fp8")[0]
    assert packed_online.weight_format == Format("fp8", 8)
    assert packed_online.embedding == plain.embedding
    linear = plain.size.bytes - 2 * plain.embedding.bytes
    assert packed_online.size.bytes == plain.size.bytes - linear // 2
    # A checkpoint that is packed already stays as it is; the size of the files is that of the unpacked one.
    assert models.read(shapes.config("kimi-k2.5"), online="fp8")[0] == shape("kimi-k2.5")
    index = {"metadata": {"total_size": plain.size.bytes}}
    assert models.read(bare, online="fp8", index=index) == (packed_online, [])
    assert models.read(bare, online="unquant")[0] == plain
    for online, bits in (("mxfp8", 8.25), ("w8a8_fp8", 8), ("bitsandbytes", 4 + 9 / 64)):
        found = models.read(bare, online=online)[0]
        assert found.size.bytes == plain.size.bytes - linear + linear * bits / 16
    # They want a checkpoint that is packed.
    for online in ("awq", "w8a8_int8", "modelopt_fp4", "mxfp4"):
        finding = fault(bare, online=online)
        assert (finding.id, f"--quantization {online}" in finding.seen) == ("model.quantization", True)
        assert "set sglang_server_tuned to false" in finding.remedy


# The sizes of the files


def total(size: int, *names: str) -> dict[str, Any]:
    return {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}


def test_sizes_are_scaled_to_the_files() -> None:
    plain = shape("kimi-k2.5")
    found, findings = models.read(shapes.config("kimi-k2.5"), index=total(int(plain.size.bytes * 1.02)))
    assert findings == []
    assert found.size.bytes == pytest.approx(plain.size.bytes * 1.02, rel=0.001)
    assert found.layers[5].routed.bytes == pytest.approx(plain.layers[5].routed.bytes * 1.02, rel=1e-6)
    assert found.layers[5].absorbed == plain.layers[5].absorbed
    assert found.layers[0].dense.bytes == pytest.approx(plain.layers[0].dense.bytes * 1.02, rel=1e-6)
    assert found.head.bytes == found.embedding.bytes == pytest.approx(plain.head.bytes * 1.02, rel=1e-6)
    assert found.size.parameters == plain.size.parameters


@pytest.mark.parametrize(("share", "used"), [(0.5, 1), (0.96, 1), (1.04, 1.04), (2, 2)])
def test_a_size_that_differs_is_told(share: float, used: float) -> None:
    plain = shape("llama-3.1-8b")
    found, findings = models.read(shapes.config("llama-3.1-8b"), index=total(int(plain.size.bytes * share)))
    (finding,) = findings
    assert (finding.id, finding.severity) == ("model.size_differs", "warning")
    assert f"{plain.size.bytes / 1e9:.1f} GB" in finding.seen
    assert f"{plain.size.bytes * share / 1e9:.1f} GB" in finding.seen
    assert found.size.bytes == pytest.approx(plain.size.bytes * used, rel=1e-6)


def test_draft_layers_count_where_the_files_have_them() -> None:
    served, draft = shape("deepseek-v3").size.bytes, shape("deepseek-v3").draft.bytes
    for index in (
        total(served + draft),
        total(served + draft, "model.layers.0.mlp", "model.layers.61.mlp"),
        total(served, "model.layers.60.mlp", "lm_head.weight"),
    ):
        found, findings = models.read(shapes.config("deepseek-v3"), index=index)
        assert findings == []
        assert found.size.bytes == pytest.approx(served, rel=1e-6)
    assert models.read(shapes.config("deepseek-v3"), index=total(served - draft, "lm_head.weight"))[1] == []
    assert models.read(shapes.config("deepseek-v3"), index=total(served - draft))[1] != []


@pytest.mark.parametrize("size", [None, "30", 0, -1, True, 2.5])
def test_a_size_that_is_none_is_left_out(size: object) -> None:
    assert models.read(shapes.config("llama-3.1-8b"), index={"metadata": {"total_size": size}}) == (
        shape("llama-3.1-8b"),
        [],
    )


# What cannot be sized


def test_all_missing_keys_are_named_at_once() -> None:
    text = shapes.config("kimi-k2.5")["text_config"]
    bare = {key: text[key] for key in ("num_hidden_layers", "kv_lora_rank", "n_routed_experts")}
    finding = fault({"architectures": ["MadeUpForConditionalGeneration"], "text_config": bare})
    assert finding.id == "model.incomplete"
    for key in (
        "hidden_size",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "moe_intermediate_size",
        "num_experts_per_tok",
    ):
        assert f"no {key}" in finding.seen
    assert "MadeUpForConditionalGeneration" in finding.seen
    assert "no num_hidden_layers" not in finding.seen
    # Where every layer has experts, there is no dense MLP whose width would count.
    assert "no intermediate_size" not in finding.seen
    assert "no intermediate_size" in fault({**bare, "first_k_dense_replace": 1}).seen


@pytest.mark.parametrize("value", ["64", 0, -1, 2.5, True, [64]])
def test_a_value_that_is_no_number_is_named(value: object) -> None:
    finding = fault(shapes.config("llama-3.1-8b") | {"num_attention_heads": value})
    assert (finding.id, f"num_attention_heads {value!r}" in finding.seen) == ("model.value", True)
    assert shape("llama-3.1-8b", num_nextn_predict_layers=0).draft == Size()


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"index_topk": 2048}, "indexer"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"linear_num_key_heads": 16}, "linear attention"),
        ({"mamba_d_state": 128}, "state-space"),
    ],
)
def test_caches_of_other_kinds_are_refused(changes: dict[str, Any], seen: str) -> None:
    finding = fault(shapes.config("qwen3-235b-a22b") | changes)
    assert (finding.id, seen in finding.seen) == ("model.unsupported", True)
    assert finding.remedy == "Set sglang_server_tuned to false, and layout and memory fraction yourself"


def test_an_unknown_architecture_is_computed_with_a_warning() -> None:
    found, (finding,) = models.read(shapes.config("deepseek-v3") | {"architectures": ["MadeUpForCausalLM"]})
    assert replace(found, architecture="DeepseekV3ForCausalLM") == shape("deepseek-v3")
    assert (finding.id, finding.severity) == ("model.architecture", "warning")
    assert finding.seen.startswith("architecture MadeUpForCausalLM is not known")
    assert "61 layers" in finding.seen
    assert "MLA attention with 256 experts" in finding.seen
    assert "no experts" in models.read(shapes.config("llama-3.1-8b") | {"architectures": ["MadeUp"]})[1][0].seen
    nested = models.read({"text_config": shapes.config("deepseek-v3")})[0]
    assert nested.architecture == "DeepseekV3ForCausalLM"
    for nameless in ({"architectures": []}, {"architectures": None}, {"architectures": "LlamaForCausalLM"}):
        finding = fault(shapes.config("llama-3.1-8b") | nameless)
        assert (finding.id, finding.seen) == ("model.incomplete", "config.json of the model has no architectures")


def test_layers_are_counted_without_the_rest() -> None:
    assert models.layer_count({"text_config": {"num_hidden_layers": 61}}) == 61
    with pytest.raises(ModelError, match="num_hidden_layers"):
        models.layer_count({"text_config": {"hidden_size": 8}})


@pytest.mark.parametrize("name", shapes.NAMES)
def test_whatever_a_config_says_the_answer_is_a_finding(name: str) -> None:
    """No config.json, however broken, ends in another error than ModelError."""
    chance = random.Random(name)  # noqa: S311
    values = [None, "", "x", -1, 0, 1, 2.5, True, [], ["full_attention"], [1, 2], {}, {"a": 1}]

    def change(part: dict[str, Any]) -> None:
        key = chance.choice(sorted(part))
        if isinstance(part[key], dict) and part[key] and chance.random() < 0.7:
            change(part[key])
        elif chance.random() < 0.2:
            del part[key]
        else:
            part[key] = copy.deepcopy(chance.choice(values))

    refused = 0
    for _ in range(300):
        broken = copy.deepcopy(shapes.config(name))
        for _ in range(chance.randint(1, 3)):
            change(broken)
        if "num_hidden_layers" not in json.dumps(broken):
            continue
        try:
            found, _ = models.read(broken, index=total(10**9))
            assert found.size.bytes > 0
        except ModelError:
            refused += 1
    assert refused


# Folders


def write(folder: Path, name: str, value: object) -> None:
    (folder / name).write_text(json.dumps(value))


def weights(path: Path, **tensors: int) -> None:
    ends, start = {"__metadata__": {"format": "pt"}}, 0
    for tensor, size in tensors.items():
        ends[tensor] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [start, start + size]}  # type: ignore[dict-item]
        start += size
    header = json.dumps(ends).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def test_a_folder_with_an_index(tmp_path: Path) -> None:
    plain = shape("qwen3-235b-a22b")
    write(tmp_path, "config.json", shapes.config("qwen3-235b-a22b"))
    assert models.load(tmp_path) == (plain, [])
    write(tmp_path, "model.safetensors.index.json", total(plain.size.bytes * 3))
    weights(tmp_path / "model-00001-of-00001.safetensors", a=8)
    found, findings = models.load(tmp_path)
    assert [finding.id for finding in findings] == ["model.size_differs"]
    assert found.size.bytes == plain.size.bytes * 3
    write(tmp_path, "hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}})
    assert models.load(tmp_path)[0].weight_format.name == "fp8"


def test_a_folder_without_an_index(tmp_path: Path) -> None:
    plain = shape("llama-3.2-1b")
    write(tmp_path, "config.json", shapes.config("llama-3.2-1b"))
    half = plain.size.bytes // 2
    weights(tmp_path / "a.safetensors", first=half - 10, second=10)
    weights(tmp_path / "b.safetensors", third=half)
    assert models.load(tmp_path) == (plain, [])
    assert models.load(tmp_path, online="fp8")[0].weight_format.name == "fp8"
    (tmp_path / "b.safetensors").unlink()
    assert [finding.id for finding in models.load(tmp_path)[1]] == ["model.size_differs"]


def folder_fault(folder: Path) -> models.Finding:
    with pytest.raises(ModelError) as raised:
        models.load(folder)
    (finding,) = raised.value.findings
    assert str(folder) in finding.seen
    return finding


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    assert folder_fault(tmp_path).seen.endswith("has no config.json")
    write(tmp_path, "params.json", {"dim": 4096})
    finding = folder_fault(tmp_path)
    assert (finding.id, "Mistral" in finding.seen) == ("model.no_config", True)


@pytest.mark.parametrize("text", ["{", "[]", "\xff\xfe"])
def test_a_config_that_is_no_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    assert folder_fault(tmp_path).id == "model.unreadable"


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    assert folder_fault(tmp_path).id == "model.unreadable"
    (tmp_path / "config.json").rmdir()
    write(tmp_path, "config.json", shapes.config("llama-3.2-1b"))
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "missing")
    assert folder_fault(tmp_path).id == "model.unreadable"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x01",
        struct.pack("<Q", 2**64 - 1) + b"{}",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 3) + b"{{{",
        struct.pack("<Q", 7) + b'{"a":1}',
        struct.pack("<Q", 30) + b'{"a": {"data_offsets": [0, 1}}'[:30],
        struct.pack("<Q", 31) + b'{"a": {"data_offsets": [0, ""]}}'[:31],
    ],
)
def test_weights_that_are_none(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, "config.json", shapes.config("llama-3.2-1b"))
    (tmp_path / "model.safetensors").write_bytes(content)
    assert folder_fault(tmp_path).id == "model.unreadable"


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"num_hidden_layers": 1001}, "num_hidden_layers above 1000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers above 1000"),
        ({"num_nextn_predict_layers": 17}, "num_nextn_predict_layers above 16"),
        ({"num_experts": 10**9}, "num_experts above 65536"),
        ({"hidden_size": 10**30}, "hidden_size above 16777216"),
        ({"max_position_embeddings": 1 << 40}, "max_position_embeddings above 1073741824"),
        ({"hidden_size": "x" * 10**6}, "hidden_size 'xxx"),
        ({"hidden_size": [1] * 10**6}, "hidden_size a list of 1000000"),
        ({"hidden_size": -(10**5000)}, "hidden_size a number of more than 64 bits"),
        ({"quantization_config": ["fp8"]}, "quantization_config is ['fp8']"),
        ({"quantization_config": "fp8"}, "quantization_config is 'fp8'"),
        ({"quantization_config": []}, "quantization_config is []"),
        ({"quantization_config": {"quant_method": "awq", "bits": 10**9}}, "says 1000000000 bits"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 0}}, "says 0 bits"),
        ({"quantization_config": packed(num_bits=17, type="int")}, "says 17 bits"),
    ],
)
def test_numbers_that_no_model_has_are_refused(changes: dict[str, Any], seen: str) -> None:
    finding = fault(shapes.config("qwen3-235b-a22b") | changes)
    assert (finding.id, finding.severity) == ("model.value", "error")
    assert seen in finding.seen
    assert len(finding.seen) < 300


def test_the_largest_model_that_is_read() -> None:
    found = shape("qwen3-235b-a22b", num_hidden_layers=1000, num_nextn_predict_layers=16)
    assert (len(found.layers), len(found.draft_layers)) == (1000, 16)
    # Equal layers are one object.
    assert len({id(layer) for layer in found.layers}) == 1


@pytest.mark.parametrize(
    "pattern", ["re:(a+)+$", "re:(.*)*x", "re:" + ".*" * 20 + "x", "re:" + ".?" * 40 + "x", "re:" + "(.|.)" * 30 + "x"]
)
def test_a_pattern_that_takes_for_ever_is_refused(pattern: str) -> None:
    start = time.thread_time()
    finding = fault(shapes.config("deepseek-v3") | {"quantization_config": FP8 | {"ignore": [pattern]}})
    assert (finding.id, "too loose" in finding.seen) == ("model.value", True)
    assert time.thread_time() - start < 1


def test_patterns_that_take_long_together_are_refused() -> None:
    start = time.thread_time()
    stored = FP8 | {"ignore": [f"re:.*.*.*.*x{i}" for i in range(500)]}
    finding = fault(shapes.config("deepseek-v3") | {"num_hidden_layers": 1000, "quantization_config": stored})
    assert (finding.id, "too long" in finding.seen) == ("model.value", True)
    finding = fault(
        shapes.config("deepseek-v3") | {"quantization_config": FP8 | {"ignore": [f"a{i}*" for i in range(10**5)]}}
    )
    assert (finding.id, "more than 512" in finding.seen) == ("model.value", True)
    assert time.thread_time() - start < 2


def test_many_plain_names_take_no_time() -> None:
    names = [f"model.layers.{i}.mlp.experts.{j}" for i in range(61) for j in range(256)]
    start = time.thread_time()
    found = shape("deepseek-v3", quantization_config=FP8 | {"ignore": names})
    assert time.thread_time() - start < 1
    assert found.layers[5].routed.bytes == 2 * found.layers[5].routed.parameters


def test_a_config_that_is_nested_too_deep(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 200_000)
    assert folder_fault(tmp_path).id == "model.unreadable"


@pytest.mark.parametrize(
    ("stored", "method"),
    [
        (FP8, "fp8"),
        ({"quant_algo": "NVFP4"}, "modelopt_fp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt_fp8"),
        (packed(num_bits=4, type="int"), "compressed-tensors"),
    ],
)
def test_the_name_of_a_method_is_that_of_sglang(stored: dict[str, Any], method: str) -> None:
    assert shape("qwen3-235b-a22b", quantization_config=stored).quantization == method
    assert shape("llama-3.1-8b").quantization == ""
