# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Warm-up: the kernels that a serving process compiles at first use, and which of them can be compiled without a GPU.

Read in the published sources of SGLang 0.5.11 to 0.5.23, of the FlashInfer that each release pins (0.6.8.post1 to
0.7.2) and of sglang-kernel 0.4.2.post2, 0.4.5 and 0.4.10. Kernels that no rule here names may exist: vision towers,
speculative decoding, LoRA, sparse and linear attention were not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ansible_collections.inference.sglang.plugins.module_utils.launch_rules import Launch
from ansible_collections.inference.sglang.plugins.module_utils.models import KV_BITS

JIT = "sglang/jit_kernel up to 0.5.16, sglang/kernels/ops from 0.5.17 on"
FUSION = "sglang/srt/server_args.py up to 0.5.14, srt/arg_groups/overrides.py from 0.5.15 on"

FUSED_SINCE = {
    "DeepseekV32ForCausalLM": "0.5.11",
    "DeepseekV3ForCausalLM": "0.5.11",
    "DeepseekV4ForCausalLM": "0.5.18",
    "Glm4MoeForCausalLM": "0.5.11",
    "Glm4MoeLiteForCausalLM": "0.5.11",
    "GlmMoeDsaForCausalLM": "0.5.11",
    "GptOssForCausalLM": "0.5.11",
    "InternS2PreviewForConditionalGeneration": "0.5.12",
    "KimiK25ForConditionalGeneration": "0.5.11",
    "MistralLarge3ForCausalLM": "0.5.13",
    "NemotronHForCausalLM": "0.5.14",
    "NemotronHPuzzleForCausalLM": "0.5.14",
    "NemotronH_Omni_Reasoning_V3": "0.5.20",
    "Qwen3MoeForCausalLM": "0.5.11",
    "Qwen3NextForCausalLM": "0.5.11",
    "Qwen3VLMoeForConditionalGeneration": "0.5.14",
    "Qwen3_5ForConditionalGeneration": "0.5.11",
    "Qwen3_5MoeForConditionalGeneration": "0.5.11",
    "Qwen4ExpForConditionalGeneration": "0.5.20",
}
"""Architectures for which SGLang switches the all-reduce fusion on by itself, and since when: ``FUSION``."""

WHOLE_ROPE = frozenset({"GptOssForCausalLM", "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
"""Architectures that rotate the whole head, in halves (``get_rope`` in ``srt/models``); others may rotate a part."""


@dataclass(frozen=True)
class Kernel:
    """A kernel that is compiled at first use.

    ``name``       what role flashinfer's ``build_modules.py`` takes: a FlashInfer module (``sampling``), or a kernel of
                   SGLang's own with its template arguments (``activation(bfloat16)``)
    ``needs_gpu``  only the serving process can compile it: on its GPU, for the tensors that it has there
    ``reason``     what makes the process compile it
    """

    name: str
    maker: Literal["flashinfer", "sglang"]
    needs_gpu: bool
    reason: str
    source: str


Rule = Callable[[Launch], Iterator[Kernel]]


def kernels(launch: Launch) -> tuple[Kernel, ...]:
    """The kernels of an engine, each once, in the order of ``RULES``.

    Empty without a known release, model or compute capability, and on a CPU.
    """
    if not launch.release or launch.shape is None or launch.capability is None:
        return ()
    if launch.text("--device") not in ("", "auto", "cuda"):
        return ()
    found = {kernel.name: kernel for rule in reversed(RULES) for kernel in reversed([*rule(launch)])}
    return tuple(reversed(found.values()))


def ahead(found: tuple[Kernel, ...]) -> list[str]:
    """The names of those that role flashinfer compiles at installation."""
    return [kernel.name for kernel in found if not kernel.needs_gpu]


def architecture(capability: int) -> str:
    """What FlashInfer compiles for on a GPU of a compute capability times ten: ``12.0f`` for 120.

    Source: ``_normalize_cuda_arch`` in ``flashinfer/compilation_context.py``, with CUDA 12.9 or later.
    """
    major, minor = divmod(capability, 10)
    suffix = "" if major < 9 else "f" if capability == 120 else "a"
    return f"{major}.{minor}{suffix}"


# FlashInfer.


def normalisation(launch: Launch) -> Iterator[Kernel]:
    """RMSNorm goes through sglang-kernel to FlashInfer, which writes it in the CuTe DSL; the CUDA module is its
    fallback. Source: ``sgl_kernel/elementwise.py``, ``flashinfer/norm/__init__.py``.
    """
    source = "flashinfer/norm/__init__.py"
    if launch.environment.get("FLASHINFER_USE_CUDA_NORM") == "1":
        yield Kernel("norm", "flashinfer", False, "every layer; FLASHINFER_USE_CUDA_NORM is 1", source)
    else:
        reason = "every layer; a process compiles its CuTe DSL kernels itself, in memory"
        yield Kernel("norm_cute", "flashinfer", True, reason, source)


def sampling(launch: Launch) -> Iterator[Kernel]:
    """The warm-up request of SGLang is greedy, so a client's request waits for the compiler.

    Source: ``Sampler.forward``, and ``_sampling_backend_default`` (before: ``_handle_sampling_backend``).
    """
    if launch.switch("--enable-deterministic-inference") or launch.text("--sampling-backend") == "pytorch":
        return
    reason = "the first request with a temperature, and top_p, top_k or min_p"
    yield Kernel("sampling", "flashinfer", False, reason, "sglang/srt/layers/sampler.py")


def all_reduce_fusion(launch: Launch) -> Iterator[Kernel]:
    """All-reduce, residual and RMSNorm in one kernel, on SM90 and SM10x. Silent for 3.5 minutes when it was measured.

    Not told: H20, where it stays off up to 0.5.12.post1, and GPUs without multicast memory, where its workspace is
    refused. Source: ``FUSION``, ``srt/layers/flashinfer_comm_fusion.py``.
    """
    backend = _fusion_backend(launch)
    if backend:
        name = {"trtllm": "trtllm_comm", "mnnvl": "trtllm_mnnvl_comm"}[backend]
        reason = f"all-reduce fusion of {launch.tensor} tensor ranks, backend {backend}"
        yield Kernel(name, "flashinfer", False, reason, f"{FUSION}; srt/layers/flashinfer_comm_fusion.py")


def latent_rope(launch: Launch) -> Iterator[Kernel]:
    """Rotation and FP8 in one kernel, for a latent cache in FP8. Source: ``mla_quantize_and_rope_for_fp8``."""
    fused = {"cutedsl_mla", "tokenspeed_mla", "trtllm_mla"} & {*launch.backends}
    if fused and _cached_bits(launch) == 8:
        reason = f"attention backend {min(fused)} with an FP8 cache"
        yield Kernel("rope", "flashinfer", False, reason, "sglang/srt/layers/attention/trtllm_mla_backend.py")


# SGLang's own, through tvm-ffi.


def positions(launch: Launch) -> Iterator[Kernel]:
    """Source: ``ForwardBatch.init_new``; ``FutureMap`` in ``srt/managers/overlap_utils.py`` up to 0.5.12.post1, where
    pipeline stages do without the overlap.
    """
    source = "sglang/srt/model_executor/forward_batch_info.py"
    yield Kernel("clamp_position(int64)", "sglang", False, "every batch that decodes", source)
    overlap = launch.pipeline == 1 and not launch.switch("--disable-overlap-schedule")
    if overlap and launch.before("0.5.13"):
        reason = "every batch that decodes with the overlap schedule"
        source = "sglang/srt/managers/overlap_utils.py"
        yield Kernel("resolve_future_token_ids(int64)", "sglang", False, reason, source)


def activation(launch: Launch) -> Iterator[Kernel]:
    """SiLU or GELU with a product; gpt-oss has another. Source: ``srt/layers/activation.py``."""
    if launch.model != "GptOssForCausalLM":
        name = f"activation({_dtype(launch)})"
        yield Kernel(name, "sglang", False, "every MLP", "sglang/srt/layers/activation.py")


def rope(launch: Launch) -> Iterator[Kernel]:
    """Rotation in place. Source: ``RotaryEmbedding.forward_cuda``; from 0.5.17 on with the type of the queries too."""
    shape = launch.shape
    if shape is None:
        return
    size = shape.rope_dim if _latent(launch) else shape.head_dim if launch.model in WHOLE_ROPE else 0
    if size not in (64, 128, 256, 512):
        return
    halves = "false" if _latent(launch) else "true"
    types = [_dtype(launch)] * (1 if launch.before("0.5.17") else 2)
    name = f"fused_rope({','.join([halves, str(size), *types])})"
    yield Kernel(name, "sglang", False, "every layer", "sglang/srt/layers/rotary_embedding/base.py")


def cache(launch: Launch) -> Iterator[Kernel]:
    """Keys and values into the cache, by the bytes of a row.

    Source: ``_set_kv_buffer_impl`` in ``srt/mem_cache/memory_pool.py``; ``set_mla_kv_buffer_triton``, from 0.5.12 on
    for 768 tokens and more.
    """
    shape = launch.shape
    bits = _cached_bits(launch)
    if shape is None or bits not in (8, 16):
        return
    if _latent(launch):
        if bits == 16 and launch.since("0.5.12") and (launch.family or 0) >= 9:
            name = f"set_mla_kv_buffer({2 * shape.kv_rank},{2 * shape.rope_dim},true)"
            reason = "prefill of 768 tokens and more"
            yield Kernel(name, "sglang", False, reason, "sglang/srt/mem_cache (mla_buffer.py, utils.py)")
        return
    heads = max(shape.kv_heads // max(launch.tensor // launch.attention_data, 1), 1)
    rows = [heads * width * int(bits) // 8 for width in (shape.head_dim, shape.v_head_dim)]
    if launch.before("0.5.17"):
        if rows[0] != rows[1]:
            return
        del rows[1]
    elif launch.since("0.5.21"):
        rows.append(0)
    name = f"kvcache({','.join(map(str, rows))})"
    yield Kernel(name, "sglang", False, "every layer", "sglang/srt/mem_cache/memory_pool.py")


def integer_experts(launch: Launch) -> Iterator[Kernel]:
    """INT4 or INT8 weights of experts in Marlin's order, which the loader makes and the MoE kernel reads.

    Not on SM10x unless asked for: there Kimi has trtllm-gen or Triton. Source: ``get_moe_scheme`` and
    ``CompressedTensorsWNA16MoE``; ``fused_marlin_moe.py`` for the arguments, which are more since 0.5.17 and 0.5.23.
    """
    shape = launch.shape
    runner = launch.text("--moe-runner-backend") or "auto"
    chosen = runner == "marlin" or (runner == "auto" and launch.family in (8, 9, 12))
    if shape is None or not shape.experts or not chosen or not _is_integer(launch):
        return
    yield from _repack(launch)
    dtype, expert = _dtype(launch), launch.expert > 1
    arguments: list[tuple[str | bool, ...]] = [(dtype,)]
    if launch.since("0.5.23"):
        arguments = [(dtype, expert, False, not expert, last, not expert) for last in (False, True)]
    elif launch.since("0.5.17"):
        arguments = [(dtype, expert, False)]
    source = "sglang/srt/layers/moe/fused_moe_triton/fused_marlin_moe.py"
    for given in arguments:
        name = f"moe_wna16_marlin({','.join(str(value).lower() for value in given)})"
        yield Kernel(name, "sglang", False, f"experts in {_format(launch)}", source)


def integer_layers(launch: Launch) -> Iterator[Kernel]:
    """INT4 or INT8 weights of attention or MLP. Source: ``compressed_tensors_wNa16.py``, ``marlin_utils.py``."""
    shape = launch.shape
    if shape is None or not _is_integer(launch):
        return
    sizes = [size for layer in shape.layers for size in (layer.attention, layer.dense, layer.shared)]
    if any(size.parameters and size.bytes < 1.5 * size.parameters for size in sizes):
        yield from _repack(launch)
        reason = f"attention or MLP in {_format(launch)}"
        source = "sglang/srt/layers/quantization/marlin_utils.py"
        yield Kernel(f"gptq_marlin({_dtype(launch)})", "sglang", False, reason, source)


# What only the serving process can compile.


def attention(launch: Launch) -> Iterator[Kernel]:
    """Triton's and FlashInfer's kernels are made for the head sizes, types and variants that the backend meets."""
    for backend in dict.fromkeys(launch.backends):
        if backend == "triton":
            source = "sglang/srt/layers/attention/triton_backend.py"
            yield Kernel("triton_attention", "sglang", True, "Triton compiles for the first batch's tensors", source)
        elif backend == "flashinfer":
            source = f"sglang/srt/layers/attention/flashinfer_{'mla_' if _latent(launch) else ''}backend.py"
            name = "batch_mla" if _latent(launch) else "batch_attention"
            yield Kernel(name, "flashinfer", True, "compiled for the plan of the first batch", source)


def expert_runner(launch: Launch) -> Iterator[Kernel]:
    """FlashInfer's grouped matrix products; those of trtllm-gen are downloaded, the CUTLASS ones compiled for the GPU.

    Source: ``srt/layers/moe/moe_runner``.
    """
    runner = launch.text("--moe-runner-backend")
    if launch.shape and launch.shape.experts and runner.startswith("flashinfer_"):
        source = "sglang/srt/layers/moe/moe_runner"
        yield Kernel(
            f"fused_moe_{runner.removeprefix('flashinfer_')}", "flashinfer", True, f"experts by {runner}", source
        )


RULES: tuple[Rule, ...] = (
    normalisation,
    sampling,
    all_reduce_fusion,
    latent_rope,
    positions,
    activation,
    rope,
    cache,
    integer_experts,
    integer_layers,
    attention,
    expert_runner,
)


def _fusion_backend(launch: Launch) -> Literal["", "trtllm", "mnnvl"]:
    """The all-reduce fusion's backend; empty where it is off, or written in the CuTe DSL."""
    ten = launch.family == 10
    one_node = launch.node_count == 1
    if launch.tensor == 1 or launch.family not in (9, 10):
        return ""
    disabled = "--enforce-disable-flashinfer-allreduce-fusion", "--enable-deterministic-inference"
    if launch.attention_data > 1 or any(map(launch.switch, disabled)):
        return ""
    asked = str(launch.given("--flashinfer-allreduce-fusion-backend") or "")
    if not asked and not launch.switch("--enable-flashinfer-allreduce-fusion"):
        since = FUSED_SINCE.get(launch.model)
        if not since or launch.before(since) or launch.all_to_all != "none":
            return ""
    if launch.before("0.5.14"):
        return "trtllm" if one_node else ""
    if asked in ("", "auto"):
        return "mnnvl" if ten else "trtllm" if one_node else ""
    if asked == "mnnvl":
        return "mnnvl" if ten or one_node else ""
    return "trtllm" if asked == "trtllm" and one_node else ""


def _repack(launch: Launch) -> Iterator[Kernel]:
    awq = "awq" in launch.text("--quantization")
    name = f"{'awq' if awq else 'gptq'}_marlin_repack()"
    yield Kernel(name, "sglang", False, f"loading of {_format(launch)} weights", JIT)


def _latent(launch: Launch) -> bool:
    return launch.shape is not None and launch.shape.attention == "mla"


def _cached_bits(launch: Launch) -> float:
    """Bits of a cached value."""
    stored = launch.shape.kv_bits if launch.shape else 0
    return KV_BITS.get(launch.text("--kv-cache-dtype"), stored)


def _format(launch: Launch) -> str:
    return launch.shape.weight_format.name if launch.shape else ""


def _is_integer(launch: Launch) -> bool:
    return _format(launch) in ("int4", "int8")


def _dtype(launch: Launch) -> str:
    """The type of activations, as torch spells it."""
    given = launch.text("--dtype")
    if given in ("", "auto"):
        return launch.shape.dtype if launch.shape else "bfloat16"
    return {"half": "float16", "float": "float32"}.get(given, given)
