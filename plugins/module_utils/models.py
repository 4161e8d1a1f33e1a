# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A model's shape: what its ``config.json`` says about layers, experts, bytes of weights and bytes of KV cache.

Counted are embeddings, linear layers with their scales, routers and vision towers. Norms and biases, together below
0.1 % of any model here, are not.
"""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, as_text

HERE = "plugins/module_utils/models.py"

KNOWN = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Glm4MoeForCausalLM",
        "GptOssForCausalLM",
        "KimiK25ForConditionalGeneration",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3VLMoeForConditionalGeneration",
    }
)
"""Architectures whose keys were compared with SGLang's model files of 0.5.12.post1 (``srt/models``)."""

SPLIT_POOL = frozenset({"GptOssForCausalLM"})
"""Those of ``KNOWN`` that keep sliding-window layers in a pool of their own: ``is_hybrid_swa_model`` in
``srt/configs/model_config.py`` of 0.5.12.post1. Any other keeps every token in every layer."""

UNSUPPORTED = {
    "index_topk": "sparse attention with an indexer",
    "compress_ratios": "compressed attention",
    "linear_attn_config": "linear attention",
    "linear_num_key_heads": "linear attention",
    "mamba_d_state": "state-space layers",
    "ssm_state_size": "state-space layers",
}
"""Keys of ``config.json`` that stand for caches which are not sized here."""

KV_BITS = {
    "bf16": 16.0,
    "bfloat16": 16.0,
    "fp8_e4m3": 8.0,
    "fp8_e5m2": 8.0,
    # 4 bits and one scale byte for 16 values: DefaultPoolConfigurator in srt/model_executor/pool_configurator.py
    "fp4_e2m1": 4.5,
}
"""Bits a cached value by ``--kv-cache-dtype``; ``auto`` is 8 where a ModelOpt checkpoint asks for FP8, else 16
(``configure_kv_cache_dtype`` in ``srt/model_executor/model_runner.py`` of 0.5.12.post1)."""

MOST = 1 << 24
MOST_LAYERS, MOST_DRAFTS, MOST_EXPERTS, MOST_BITS = 1000, 16, 1 << 16, 16
MOST_CONTEXT = 1 << 30
"""Larger numbers in a ``config.json`` are taken for mistakes."""

QUANTIFIERS, GROUPS, MOST_PATTERNS = 5, 3, 512
"""Repetitions and groups in a pattern of ``quantization_config``, and such patterns; with more, matching them may take
for ever."""

PATIENCE = 0.5
"""Seconds of processor time that all matches of a model's modules may take together."""

ONLINE = ("fp8", "mxfp8", "w8a8_fp8", "bitsandbytes")
"""``--quantization`` by which SGLang packs a checkpoint of 16 bits while it loads, on NVIDIA GPUs: Fp8Config and
W8A8Fp8Config in ``srt/layers/quantization``, ``_unquantized_generator`` in ``srt/model_loader/loader.py`` of
0.5.12.post1. Others want a packed checkpoint, or pack only a part of the modules."""

YOURSELF = "set sglang_server_tuned to false, and layout and memory fraction yourself"

LARGEST_HEADER = 100_000_000
"""Bytes; the safetensors format refuses longer headers."""

TOLERANCE = 0.03
"""Largest relative difference between computed and stored bytes that is put down to norms, biases and padding."""


class ModelError(ValueError):
    """A model whose sizes cannot be told; ``findings`` say why."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__(as_text(findings))
        self.findings = findings


@dataclass(frozen=True)
class Size:
    """A number of weights and the bytes that they take, scales included."""

    parameters: int = 0
    bytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.parameters + other.parameters, self.bytes + other.bytes)

    def __mul__(self, count: int) -> Size:
        return Size(self.parameters * count, self.bytes * count)

    def scaled(self, factor: float) -> Size:
        """As many parameters in ``factor`` times the bytes."""
        return Size(self.parameters, round(self.bytes * factor))


@dataclass(frozen=True)
class Format:
    """How a weight matrix is stored: ``bits`` a value, and ``scale_bits`` for each block of ``rows`` x ``columns``.

    0 rows or columns stand for the whole length; a matrix is [outputs, inputs].
    """

    name: str
    bits: int
    rows: int = 0
    columns: int = 0
    scale_bits: int = 0

    def size(self, rows: int, columns: int) -> Size:
        """A matrix of this format."""
        scales = -(-rows // (self.rows or rows)) * -(-columns // (self.columns or columns))
        return Size(rows * columns, -(-(rows * columns * self.bits + scales * self.scale_bits) // 8))


@dataclass(frozen=True)
class Layer:
    """One decoder layer.

    ``attention``   what tensor parallelism divides by heads
    ``key_value``   projections of keys and values of grouped-query attention: at most one part a KV head
    ``replicated``  on every tensor rank: MLA's down-projections, the router
    ``absorbed``    a second copy of MLA's ``kv_b_proj``, unpacked to 16 bits; divided by heads, in no checkpoint
    ``dense``       the MLP of a layer without experts
    ``shared``      experts that see every token
    ``routed``      all routed experts together
    ``window``      tokens that attention looks back; 0 is all
    """

    attention: Size = Size()
    key_value: Size = Size()
    replicated: Size = Size()
    absorbed: Size = Size()
    dense: Size = Size()
    shared: Size = Size()
    routed: Size = Size()
    window: int = 0

    @property
    def size(self) -> Size:
        """What the checkpoint holds of it."""
        return self.attention + self.key_value + self.replicated + self.dense + self.shared + self.routed

    def scaled(self, factor: float) -> Layer:
        """The same weights in ``factor`` times the bytes."""
        return Layer(
            attention=self.attention.scaled(factor),
            key_value=self.key_value.scaled(factor),
            replicated=self.replicated.scaled(factor),
            absorbed=self.absorbed,
            dense=self.dense.scaled(factor),
            shared=self.shared.scaled(factor),
            routed=self.routed.scaled(factor),
            window=self.window,
        )


@dataclass(frozen=True)
class Shape:
    """A model as memory sees it. Dimensions count values, ``context`` and windows tokens.

    ``attention``      ``mla`` (latent: ``kv_rank`` + ``rope_dim`` values a token, the same on all ranks) or ``gqa``
    ``query_rank``     rank of MLA's query projection; 0 where queries are projected at once
    ``expert_width``   intermediate size of one routed expert; ``shared_width`` of all shared, ``width`` of a dense MLP
    ``split_pool``     sliding-window layers have a pool of their own
    ``kv_bits``        what ``--kv-cache-dtype auto`` means
    ``weight_format``  of the routed experts, or of the MLP where there are none
    ``head``           empty where ``tied``: then it is the embedding, of which the last of several stages has a copy
    ``vision``         tower and projector, whole on every rank
    ``patch_bytes``    what one patch of an image takes at once in a layer of the tower
    ``draft``          layers for multi-token prediction: in the checkpoint, loaded only to speculate
    ``draft_layers``   those layers, without what each has besides: ``joined``, which joins two hidden states, and
                       copies of embedding and head
    ``quantization``   the checkpoint's method as SGLang names it; empty where it has none
    """

    architecture: str
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    attention: str
    query_rank: int
    kv_rank: int
    rope_dim: int
    experts: int
    experts_per_token: int
    shared_experts: int
    shared_width: int
    expert_width: int
    width: int
    tied: bool
    context: int
    dtype: str
    split_pool: bool
    kv_bits: float
    weight_format: Format
    layers: tuple[Layer, ...]
    embedding: Size
    head: Size
    vision: Size = Size()
    patch_bytes: int = 0
    draft: Size = Size()
    draft_layers: tuple[Layer, ...] = ()
    joined: Size = Size()
    quantization: str = ""

    @property
    def dense_layers(self) -> int:
        """Layers without routed experts."""
        return sum(not layer.routed.parameters for layer in self.layers)

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return len(self.layers) - self.dense_layers

    @cached_property
    def size(self) -> Size:
        """What is loaded to serve without speculating, each part counted once."""
        return _sum(layer.size for layer in self.layers) + self.embedding + self.head + self.vision

    @cached_property
    def active_parameters(self) -> int:
        """Weights that take part in one token: of the embedding a row, of the experts those chosen, no vision tower."""
        routed = sum(layer.routed.parameters for layer in self.layers)
        chosen = routed * self.experts_per_token // max(self.experts, 1)
        output = self.embedding if self.tied else self.head
        return sum(layer.size.parameters for layer in self.layers) - routed + chosen + output.parameters

    def distinct_experts(self, batch: int) -> float:
        """Expected number of a layer's routed experts that ``batch`` tokens reach, if all are chosen equally often."""
        return self.experts * (1 - (1 - self.experts_per_token / max(self.experts, 1)) ** batch)

    def read_bytes(self, batch: int = 1) -> int:
        """Bytes of weights that one decode step of ``batch`` tokens reads, over all ranks and stages together."""
        routed = sum(layer.routed.bytes for layer in self.layers)
        output = self.embedding if self.tied else self.head
        share = self.distinct_experts(batch) / max(self.experts, 1)
        return sum(layer.size.bytes for layer in self.layers) - routed + round(routed * share) + output.bytes

    def kv_bytes(self, kv_type: str = "auto", tensor: int = 1) -> int:
        """Bytes that one token takes in one layer, on each of ``tensor`` ranks.

        MLA's latent is the same on all ranks; KV heads are divided, each rank holding one at least.
        ``kv_type`` is a ``--kv-cache-dtype``; raises ModelError for one that is not in ``KV_BITS``.
        """
        if kv_type not in (*KV_BITS, "auto"):
            raise _fault(
                "kv_type", f"KV cache type {kv_type} has no known size", f"Use one of auto, {', '.join(KV_BITS)}"
            )
        if self.attention == "mla":
            values = self.kv_rank + self.rope_dim
        else:
            values = max(1, self.kv_heads // tensor) * (self.head_dim + self.v_head_dim)
        return -(-int(values * KV_BITS.get(kv_type, self.kv_bits)) // 8)

    def cached_bytes(self, tokens: int, kv_type: str = "auto", tensor: int = 1) -> int:
        """Bytes of KV cache that a request of ``tokens`` tokens reads for one more, all layers, on one rank."""
        seen = sum(min(tokens, layer.window) if layer.window else tokens for layer in self.layers)
        return seen * self.kv_bytes(kv_type, tensor)


def load(folder: Path, online: str = "") -> tuple[Shape, list[Finding]]:
    """The model in ``folder``: its configuration, and the sizes that its safetensors files state.

    ``online`` is the ``--quantization`` by which an unquantised checkpoint is packed while it loads.
    Raises ModelError; never reads more of a weight file than its header.
    """
    config, index, quantization = files(folder)
    return read(config, index=index, quantization=quantization, online=online)


def files(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]:
    """What ``read`` takes of the model in ``folder``: ``config.json``, index, ``hf_quant_config.json`` if there is one.

    Of the index, or of the weight files' headers where there is none, what ``read`` looks at: the size in all, and one
    name a layer. Raises ModelError.
    """
    config = _json(folder / "config.json")
    if config is None:
        own = (folder / "params.json").is_file()
        seen = "params.json, Mistral's own format, but no config.json" if own else "no config.json"
        raise _fault(
            "no_config",
            f"{folder} has {seen}",
            "Name a folder in the format of Hugging Face, with config.json and model*.safetensors",
        )
    index = _json(folder / "model.safetensors.index.json") or _headers(sorted(folder.glob("*.safetensors")))
    names: dict[str, str] = {}
    for name in _mapping(index.get("weight_map")):
        layer = re.search(r"layers\.\d+\.", name)
        names.setdefault(layer[0] if layer else "", name)
    size = _mapping(index.get("metadata")).get("total_size")
    brief = {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(names.values(), "")}
    return config, brief, _json(folder / "hf_quant_config.json")


def read(
    config: Mapping[str, Any],
    *,
    index: Mapping[str, Any] | None = None,
    quantization: Mapping[str, Any] | None = None,
    online: str = "",
) -> tuple[Shape, list[Finding]]:
    """The shape that a parsed ``config.json`` describes, and what is worth knowing about it.

    ``index``         parsed ``model.safetensors.index.json``: where it states ``total_size``, sizes are scaled to it
    ``quantization``  parsed ``hf_quant_config.json``, for a config without ``quantization_config``
    ``online``        as in ``load``
    Raises ModelError, whose finding names all keys that are missing.
    """
    text = text_config(config)
    # SGLang looks in this order: _parse_quant_hf_config in srt/configs/model_config.py, then get_quant_config in
    # srt/model_loader/weight_utils.py of 0.5.12.post1.
    sources = (
        ("quantization_config", config.get("quantization_config")),
        ("compression_config", config.get("compression_config")),
        ("quantization of hf_quant_config.json", _mapping(quantization).get("quantization")),
        ("quantization_config", text.get("quantization_config")),
    )
    for key, value in sources:
        if value is not None and not isinstance(value, Mapping):
            raise _fault("value", f"{key} is {_brief(value)}", "Copy the model's own config.json: this is a mapping")
    stored = _mapping(next((value for _key, value in sources if value), None))
    shape = replace(_shape(config, text, _quantization(stored)), quantization=_method(stored))
    findings = []
    if shape.architecture not in KNOWN:
        findings.append(
            Finding(
                "model.architecture",
                "warning",
                f"architecture {shape.architecture} is not known; its {len(shape.layers)} layers were taken for "
                f"{shape.attention.upper()} attention with {shape.experts or 'no'} experts",
                "Compare the memory that the plan expects with what the engine logs at its first start",
                HERE,
            )
        )
    factor, differs = _compare(shape, index or {})
    if online not in ("", "unquant") and not stored:
        if online not in ONLINE:
            seen = f"{shape.architecture} has weights of 16 bits, whose size by --quantization {online} is not known"
            raise _fault("quantization", seen, f"Use one of {', '.join(ONLINE)}, or {YOURSELF}")
        shape = _shape(config, text, _quantization({"quant_method": online}))
    scaled = {id(layer): layer.scaled(factor) for layer in shape.layers}
    layers = tuple(scaled[id(layer)] for layer in shape.layers)
    shape = replace(shape, layers=layers, embedding=shape.embedding.scaled(factor), head=shape.head.scaled(factor))
    return shape, findings + differs


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of ``config.json`` that describes the language model: nested in multimodal models."""
    return _mapping(config.get("text_config")) or config


def layer_count(config: Mapping[str, Any]) -> int:
    """Number of decoder layers; needs no other key. Raises ModelError."""
    keys = _Keys(text_config(config))
    count = keys.whole("num_hidden_layers", most=MOST_LAYERS)
    keys.check(_architecture(config) or "the model")
    return count


class _Keys:
    """Reads whole numbers by any of their names and remembers all that were missing or not numbers."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.missing: list[str] = []
        self.wrong: list[str] = []

    def whole(self, *names: str, default: int | None = None, most: int = MOST) -> int:
        found = next((name for name in names if self.values.get(name) is not None), None)
        if found is None:
            if default is None:
                self.missing.append(names[0])
            return 1 if default is None else default
        value = self.values[found]
        if isinstance(value, bool) or not isinstance(value, int) or value < (default != 0):
            self.wrong.append(f"{found} {_brief(value)}")
            return 1
        if value > most:
            self.wrong.append(f"{found} above {most}")
            return 1
        return value

    def check(self, architecture: str) -> None:
        if self.missing:
            seen = f"config.json of {architecture} has no {', no '.join(self.missing)}"
            raise _fault("incomplete", seen, "Copy the model's own config.json, unchanged")
        if self.wrong:
            seen = f"config.json of {architecture} says {', '.join(self.wrong)}"
            raise _fault("value", seen, "Copy the model's own config.json: these are whole numbers above 0")


@dataclass(frozen=True)
class _Modules:
    """A set of modules, by parts of their names and by patterns."""

    names: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]

    def has(self, module: str) -> bool:
        parts = module.split(".")
        ends = range(len(parts) + 1)
        named = any(".".join(parts[start:end]) in self.names for start in ends for end in ends[start + 1 :])
        return named or any(pattern.match(module) for pattern in self.patterns)


class _Quantization:
    """Which module is stored how: the first group of formats that has it, or plain where none does."""

    def __init__(
        self, groups: Sequence[tuple[_Modules, Format]] = (), ignored: _Modules | None = None, kv_bits: float = 16.0
    ) -> None:
        self.groups, self.ignored, self.kv_bits = groups, ignored, kv_bits
        self.spent = 0.0

    def of(self, module: str, plain: Format) -> Format:
        start = time.thread_time()
        if self.ignored and self.ignored.has(module):
            form = plain
        else:
            form = next((form for modules, form in self.groups if modules.has(module)), plain)
        self.spent += time.thread_time() - start
        if self.spent > PATIENCE:
            raise _fault(
                "value",
                "quantization_config has patterns that take too long to compare with the model's modules",
                "Copy the model's own config.json, unchanged",
            )
        return form


def _method(stored: Mapping[str, Any]) -> str:
    """The method as SGLang names it: ``_parse_modelopt_quant_config`` in ``srt/configs/model_config.py``."""
    method = str(stored.get("quant_method", "modelopt" if "quant_algo" in stored else "")).lower()
    if method == "modelopt":
        algorithm = str(stored.get("quant_algo")).upper()
        method = "modelopt_fp4" if "FP4" in algorithm else "modelopt_fp8" if "FP8" in algorithm else method
    return method


def _quantization(stored: Mapping[str, Any]) -> _Quantization:
    if not stored:
        return _Quantization()
    method = str(stored.get("quant_method", "modelopt" if "quant_algo" in stored else ""))
    names = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")
    ignored = [str(name) for key in names for name in _list(stored.get(key))]
    everything = _Modules(frozenset(), (re.compile(""),))
    form: Format | None = None
    if method == "compressed-tensors":
        groups = [_mapping(group) for group in _mapping(stored.get("config_groups")).values()]
        forms = [
            (_modules(_list(group.get("targets"))), _compressed(_mapping(group.get("weights")))) for group in groups
        ]
        known = [(targets, packed) for targets, packed in forms if packed]
        if known and len(known) == len(forms):
            return _Quantization(known, _modules(ignored))
    elif method in ("fp8", "fbgemm_fp8"):
        form = _float8(stored.get("weight_block_size"))
    elif method == "mxfp8":
        form = Format("mxfp8", 8, 1, 32, 8)
    elif method == "w8a8_fp8":
        form = Format("fp8", 8)
    elif method == "w8a8_int8":
        form = Format("int8", 8, 1, 0, 32)
    elif method == "bitsandbytes" and not stored.get("load_in_8bit"):
        # NF4: a scale of 8 bits for 64 values, and one of 32 bits for 256 of those.
        form = Format("nf4", 4, 1, 64, 9)
    elif method in ("gptq", "awq") and _is_whole(stored.get("bits")):
        # A zero point beside each scale.
        form = _integer(stored["bits"], stored.get("group_size"), stored["bits"])
    elif method == "mxfp4":
        form = Format("mxfp4", 4, 1, 32, 8)
    elif method.startswith("modelopt"):
        form = {"NVFP4": Format("nvfp4", 4, 1, 16, 8), "FP8": _float8(None)}.get(str(stored.get("quant_algo")).upper())
    if form is None:
        raise _fault(
            "quantization",
            f"quantisation {_brief(method or dict(stored))} has no known size",
            "Serve a checkpoint in bf16, FP8, INT4 or INT8 (compressed-tensors, GPTQ, AWQ), NVFP4 or MXFP4, or "
            + YOURSELF,
        )
    scheme = _mapping(stored.get("kv_cache_scheme"))
    narrow = stored.get("kv_cache_quant_algo") == "FP8" or (scheme.get("type"), scheme.get("num_bits")) == ("float", 8)
    cached = 8.0 if method.startswith("modelopt") and narrow else 16.0
    return _Quantization([(everything, form)], _modules(ignored), cached)


def _compressed(weights: Mapping[str, Any]) -> Format | None:
    bits: Any = weights.get("num_bits")
    group = weights.get("group_size")
    if weights.get("type") == "int" and _is_whole(bits):
        return _integer(bits, group, 0)
    if weights.get("type") == "float" and bits == 8:
        return _float8(weights.get("block_structure"))
    if weights.get("type") == "float" and bits == 4:
        return Format("mxfp4", 4, 1, 32, 8) if group == 32 else Format("nvfp4", 4, 1, 16, 8)
    return None


def _integer(bits: int, group: object, zero_bits: int) -> Format:
    if not 0 < bits <= MOST_BITS:
        remedy = f"Copy the model's own config.json: a value has 1 to {MOST_BITS} bits"
        raise _fault("value", f"quantization_config says {_brief(bits)} bits", remedy)
    return Format(f"int{bits}", bits, 1, group if isinstance(group, int) and group > 0 else 0, 16 + zero_bits)


def _float8(block: object) -> Format:
    if isinstance(block, list) and len(block) == 2 and all(_is_whole(side) and 0 < side <= MOST for side in block):
        return Format("fp8", 8, block[0], block[1], 32)
    return Format("fp8", 8)


def _modules(names: Iterable[object]) -> _Modules:
    """Module names as the tools write them: ``re:`` and a regular expression, or a name that may end or begin short.

    The prefix of multimodal models is left out on both sides: it is written before ``model.``, after it or not at all.
    """
    plain: set[str] = set()
    found: list[re.Pattern[str]] = []
    for name in map(str, names):
        bare = name.replace("language_model\\.", "").replace("language_model.", "")
        if name == "Linear":
            bare = "re:"
        if not bare.startswith("re:"):
            if "*" not in bare:
                plain.add(bare)
                continue
            bare = "re:(?:.*\\.)?" + re.sub(r"(\\\*)+", ".*", re.escape(bare)) + "(?:\\..*)?$"
            loose = bare.count(".*") - 2 > QUANTIFIERS
        else:
            loose = _loose(bare)
        try:
            if loose:
                raise re.error("it is too loose")
            if len(found) == MOST_PATTERNS:
                raise re.error(f"it is one of more than {MOST_PATTERNS} patterns")
            found.append(re.compile(bare[3:]))
        except (re.error, RecursionError, OverflowError) as error:
            raise _fault(
                "value",
                f"quantization_config names modules by {_brief(name)}: {error}",
                "Copy the model's own config.json, unchanged",
            ) from error
    return _Modules(frozenset(plain), tuple(found))


def _loose(pattern: str) -> bool:
    """Whether a regular expression may be matched in too many ways."""
    repeats = len(re.findall(r"[*+?{]", pattern)) - pattern.count("(?")
    return repeats > QUANTIFIERS or pattern.count("(") > GROUPS or bool(re.search(r"\)[*+{]", pattern))


def _shape(config: Mapping[str, Any], text: Mapping[str, Any], quantization: _Quantization) -> Shape:
    keys, architecture = _Keys(text), _architecture(config)
    if not architecture:
        keys.missing.append("architectures")
        architecture = "the model"
    kinds = _list(text.get("layer_types"))
    odd = [what for key, what in UNSUPPORTED.items() if text.get(key)]
    odd += [str(kind)[:80] for kind in kinds if kind not in ("full_attention", "sliding_attention")]
    if odd:
        raise _fault(
            "unsupported",
            f"{architecture} has {odd[0]}, whose memory is not known here",
            YOURSELF[0].upper() + YOURSELF[1:],
        )
    count, hidden = keys.whole("num_hidden_layers", most=MOST_LAYERS), keys.whole("hidden_size")
    heads, vocabulary = keys.whole("num_attention_heads"), keys.whole("vocab_size")
    experts = keys.whole("n_routed_experts", "num_experts", "num_local_experts", default=0, most=MOST_EXPERTS)
    sparse = _sparse(keys, text, count) if experts else [False] * count
    windows = _windows(keys, text, kinds, count)
    expert_width = keys.whole("moe_intermediate_size", "intermediate_size") if experts else 0
    shared_experts = keys.whole("n_shared_experts", default=0, most=MOST_EXPERTS)
    latent = keys.whole("kv_lora_rank", default=0)
    rope = keys.whole("qk_rope_head_dim") if latent else 0
    head_dim = (
        keys.whole("qk_nope_head_dim") + rope if latent else keys.whole("head_dim", default=max(hidden // heads, 1))
    )
    dtype = str(text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype"))
    # SGLang serves float32 checkpoints in 16 bits: _get_and_verify_dtype in srt/configs/model_config.py.
    plain = Format(dtype if dtype in ("bfloat16", "float16") else "bfloat16", 16)
    tied = bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))
    embedding = plain.size(vocabulary, hidden)
    shape = Shape(
        architecture=architecture,
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=keys.whole("num_key_value_heads", default=heads),
        head_dim=head_dim,
        v_head_dim=keys.whole("v_head_dim", default=None if latent else head_dim),
        attention="mla" if latent else "gqa",
        query_rank=keys.whole("q_lora_rank", default=0),
        kv_rank=latent,
        rope_dim=rope,
        experts=experts,
        experts_per_token=keys.whole("num_experts_per_tok", "experts_per_token") if experts else 0,
        shared_experts=shared_experts,
        shared_width=keys.whole("shared_expert_intermediate_size", default=shared_experts * expert_width),
        expert_width=expert_width,
        width=keys.whole("intermediate_size", default=0 if all(sparse) else None),
        tied=tied,
        context=keys.whole("max_position_embeddings", most=MOST_CONTEXT),
        dtype=plain.name,
        split_pool=architecture in SPLIT_POOL and any(windows),
        kv_bits=quantization.kv_bits,
        weight_format=plain,
        layers=(),
        embedding=embedding,
        head=Size() if tied else embedding,
    )
    vision, patch_bytes = _vision(_mapping(config.get("vision_config")), hidden)
    drafts = range(count, count + keys.whole("num_nextn_predict_layers", default=0, most=MOST_DRAFTS))
    keys.check(architecture)
    # A draft layer joins two hidden states and has copies of embedding and head: srt/models/deepseek_nextn.py.
    joined = plain.size(hidden, 2 * hidden)
    sample = "mlp.experts.0.up_proj" if any(sparse) else "mlp.up_proj"
    draft_layers = tuple(_layer(shape, quantization, i, 0, bool(experts)) for i in drafts)
    # Equal layers are one object, so that whoever sums over them can look at each once.
    same: dict[Layer, Layer] = {}
    layers = (_layer(shape, quantization, i, windows[i], sparse[i]) for i in range(count))
    return replace(
        shape,
        layers=tuple(same.setdefault(layer, layer) for layer in layers),
        vision=vision,
        patch_bytes=patch_bytes,
        draft=_sum(layer.size + joined + embedding + embedding for layer in draft_layers),
        draft_layers=draft_layers,
        joined=joined,
        weight_format=quantization.of(f"model.layers.{count - 1}.{sample}", plain),
    )


def _layer(shape: Shape, quantization: _Quantization, index: int, window: int, has_experts: bool) -> Layer:
    plain = shape.weight_format

    def linear(module: str, rows: int, columns: int) -> Size:
        return quantization.of(f"model.layers.{index}.{module}", plain).size(rows, columns)

    def mlp(module: str, width: int) -> Size:
        if not width:
            return Size()
        up = linear(f"{module}.gate_proj", width, shape.hidden) + linear(f"{module}.up_proj", width, shape.hidden)
        return up + linear(f"{module}.down_proj", shape.hidden, width)

    attention = linear("self_attn.o_proj", shape.hidden, shape.heads * shape.v_head_dim)
    replicated = plain.size(shape.experts, shape.hidden) if has_experts else Size()
    key_value = absorbed = Size()
    if shape.kv_rank:
        unpacked = shape.heads * (shape.head_dim - shape.rope_dim + shape.v_head_dim)
        attention += linear("self_attn.kv_b_proj", unpacked, shape.kv_rank)
        attention += linear("self_attn.q_b_proj", shape.heads * shape.head_dim, shape.query_rank or shape.hidden)
        replicated += linear("self_attn.kv_a_proj_with_mqa", shape.kv_rank + shape.rope_dim, shape.hidden)
        if shape.query_rank:
            replicated += linear("self_attn.q_a_proj", shape.query_rank, shape.hidden)
        # w_kc and w_vc: post_load_weights in srt/models/deepseek_common/deepseek_weight_loader.py.
        absorbed = Size(0, plain.size(unpacked, shape.kv_rank).bytes)
    else:
        attention += linear("self_attn.q_proj", shape.heads * shape.head_dim, shape.hidden)
        key_value += linear("self_attn.k_proj", shape.kv_heads * shape.head_dim, shape.hidden)
        key_value += linear("self_attn.v_proj", shape.kv_heads * shape.v_head_dim, shape.hidden)
    return Layer(
        attention=attention,
        key_value=key_value,
        replicated=replicated,
        absorbed=absorbed,
        dense=Size() if has_experts else mlp("mlp", shape.width),
        shared=mlp("mlp.shared_experts", shape.shared_width) if has_experts else Size(),
        routed=mlp("mlp.experts.0", shape.expert_width) * shape.experts if has_experts else Size(),
        window=window,
    )


def _architecture(config: Mapping[str, Any]) -> str:
    names = _list(config.get("architectures")) or _list(text_config(config).get("architectures"))
    return str(names[0])[:80] if names else ""


def _sparse(keys: _Keys, text: Mapping[str, Any], count: int) -> list[bool]:
    """Which layers have experts: DeepSeek's two keys, Qwen's two, or every layer where there are none."""
    first = keys.whole("first_k_dense_replace", default=0)
    every = keys.whole("moe_layer_freq", default=1)
    step = keys.whole("decoder_sparse_step", default=1)
    dense = {layer for layer in _list(text.get("mlp_only_layers")) if isinstance(layer, int)}
    return [i >= first and i % every == 0 and (i + 1) % step == 0 and i not in dense for i in range(count)]


def _windows(keys: _Keys, text: Mapping[str, Any], kinds: Sequence[Any], count: int) -> list[int]:
    """The sliding window of each layer in tokens, 0 for none."""
    window = keys.whole("sliding_window", default=0)
    if not window or not text.get("use_sliding_window", True):
        return [0] * count
    if len(kinds) >= count:
        return [window if kinds[i] == "sliding_attention" else 0 for i in range(count)]
    first = keys.whole("max_window_layers", default=0)
    return [window if i >= first else 0 for i in range(count)]


def _vision(vision: Mapping[str, Any], hidden: int) -> tuple[Size, int]:
    """A transformer of 16 bits and its two-layer projector, and the bytes of one patch in one of its layers.

    Nothing where the keys are others than these.
    """
    keys = _Keys(vision)
    depth = keys.whole("vt_num_hidden_layers", "depth", "num_hidden_layers", default=0, most=MOST_LAYERS)
    inner = keys.whole("vt_hidden_size", "hidden_size", default=0)
    width = keys.whole("vt_intermediate_size", "intermediate_size", default=4 * inner)
    merged = 4 * inner  # 2 x 2 patches become one token
    parameters = depth * (4 * inner * inner + 2 * inner * width) + merged * (merged + hidden)
    # Attention: residual, norm, queries, keys and values; queries and keys again in 32 bits, rotated in 32 and in 16
    # bits. MLP: residual, norm, both sides of the activation. VisionAttention in srt/layers/attention/vision.py,
    # MoonViTEncoderLayer and apply_rope in srt/models/kimi_k25.py of 0.5.12.post1.
    return Size(parameters, 2 * parameters), 2 * max(15 * inner, 2 * inner + 2 * width)


def _compare(shape: Shape, index: Mapping[str, Any]) -> tuple[float, list[Finding]]:
    """By what sizes are scaled to meet the files, and a finding where that is far from 1."""
    stored = _mapping(index.get("metadata")).get("total_size")
    if isinstance(stored, bool) or not isinstance(stored, int) or stored <= 0:
        return 1.0, []
    names = _mapping(index.get("weight_map"))
    computed = shape.size.bytes
    if not names or any(f"layers.{len(shape.layers)}." in name for name in names):
        computed += shape.draft.bytes
    factor = stored / computed
    if abs(factor - 1) <= TOLERANCE:
        return factor, []
    finding = Finding(
        "model.size_differs",
        "warning",
        f"config.json describes {computed / 1e9:.1f} GB of weights, the safetensors files state {stored / 1e9:.1f} GB",
        "Check that all files are there and belong to this config.json; the plan counts with the larger size",
        HERE,
    )
    return max(factor, 1.0), [finding]


def _headers(files: Sequence[Path]) -> dict[str, Any]:
    """What an index would say, from the headers of the weight files themselves."""
    total, names = 0, {}
    for file in files:
        try:
            with file.open("rb") as stream:
                start = stream.read(8)
                length = struct.unpack("<Q", start)[0] if len(start) == 8 else LARGEST_HEADER + 1
                header = _parse(file, stream.read(length)) if length <= LARGEST_HEADER else None
        except OSError as error:
            raise _unreadable(file, str(error.strerror)) from error
        ends = [_mapping(entry).get("data_offsets") for name, entry in (header or {}).items() if name != "__metadata__"]
        if not ends or not all(isinstance(end, list) and len(end) == 2 and isinstance(end[1], int) for end in ends):
            raise _unreadable(file, "it is no safetensors file")
        total += max(end[1] for end in ends if end)
        names.update(dict.fromkeys(header or {}, file.name))
    return {"metadata": {"total_size": total}, "weight_map": names}


def _json(path: Path) -> dict[str, Any] | None:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, str(error.strerror)) from error
    return _parse(path, text)


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"it is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise _unreadable(path, "it is no JSON object")
    return value


def _unreadable(path: Path, why: str) -> ModelError:
    return _fault("unreadable", f"{path} cannot be read: {why}", "Download the file again")


def _fault(fault: str, seen: str, remedy: str) -> ModelError:
    return ModelError(Finding(f"model.{fault}", "error", seen, remedy, HERE))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _brief(value: object) -> str:
    """A value of a config.json, which may be of any size, in few words."""
    if isinstance(value, int) and abs(value) > 1 << 64:
        return "a number of more than 64 bits"
    if isinstance(value, list | dict):
        value = f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value)}" if len(value) > 9 else value
    text = value if isinstance(value, str) and value.startswith("a ") else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _sum(sizes: Iterable[Size]) -> Size:
    total = Size()
    for size in sizes:
        total += size
    return total
