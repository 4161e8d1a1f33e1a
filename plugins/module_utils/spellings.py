# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Settings that mean the same in every release, and the flags that each release wants for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils import flags
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, errors
from ansible_collections.inference.sglang.plugins.module_utils.flags import FlagTable

VALUE: Any = object()
"""Stands in a spelling for the value of the setting."""

Spelling = Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    """One setting.

    ``meaning``    what it does, with its unit
    ``spellings``  flags with their values, the newest first; a release takes the first of which it has every flag.
                   A setting that is a switch writes its flags when it is true
    ``least``      smallest number that makes sense; None where the value is no number
    ``off``        the value, besides null and false, that writes no flag
    ``when_false`` a switch that writes its flags when it is false
    """

    meaning: str
    spellings: tuple[Spelling, ...]
    least: int | None = None
    off: object = None
    when_false: bool = False


def _same(flag: str, meaning: str, least: int | None = None, off: object = None) -> Setting:
    """A setting that is one flag, the same in every release."""
    return Setting(meaning, ({flag: VALUE},), least, off)


# Each pair was read in sglang/srt/server_args.py of the two releases at the border; the border itself is in the tables.
SETTINGS: dict[str, Setting] = {
    "tensor_parallel": _same("--tp-size", "GPUs that every layer is split over", 1),
    "pipeline_parallel": _same("--pp-size", "stages that the layers are dealt to", 1),
    "expert_parallel": _same("--ep-size", "groups of tensor ranks that share out the experts", 1, 1),
    "attention_data_parallel": Setting(
        "data-parallel attention groups inside the tensor-parallel group",
        ({"--attn-dp-size": VALUE}, {"--dp-size": VALUE, "--enable-dp-attention": True}),
        least=1,
        off=1,
    ),
    "context_length": _same("--context-length", "tokens that one request may hold", 1),
    "max_running_requests": _same("--max-running-requests", "requests that run at a time", 1),
    "micro_batch_size": _same("--pp-max-micro-batch-size", "requests in one micro-batch of a pipeline", 1),
    "async_depth": _same("--pp-async-batch-depth", "micro-batches on their way beyond one a stage", 0),
    "chunked_prefill_size": _same(
        "--chunked-prefill-size", "tokens of a prompt that are computed at once; -1: all", -1
    ),
    "memory_fraction": _same("--mem-fraction-static", "share of a GPU's memory for weights and KV cache"),
    "quantization": _same("--quantization", "quantisation of the weights"),
    "kv_cache_type": _same("--kv-cache-dtype", "type of the KV cache's values", off="auto"),
    "attention_backend": _same("--attention-backend", "kernels of attention", off="auto"),
    "moe_backend": _same("--moe-runner-backend", "kernels of the experts", off="auto"),
    "expert_all_to_all": _same("--moe-a2a-backend", "how expert-parallel ranks exchange tokens"),
    "grammar_backend": _same("--grammar-backend", "engine of structured output"),
    "tool_call_parser": _same("--tool-call-parser", "form of the model's tool calls"),
    "reasoning_parser": _same("--reasoning-parser", "form of the model's reasoning"),
    "trust_remote_code": Setting("code in the model's folder is run", ({"--trust-remote-code": True},)),
    # With NCCL_P2P_DISABLE alone, SGLang's own all-reduce still reaches from GPU to GPU.
    "p2p_fallback": Setting(
        "GPUs exchange everything through the node's memory", ({"--disable-custom-all-reduce": True},)
    ),
    "cuda_graph_max_batch_size": Setting(
        "largest batch, in requests, that decoding has a CUDA graph for",
        ({"--cuda-graph-max-bs-decode": VALUE}, {"--cuda-graph-max-bs": VALUE}),
        least=1,
    ),
    "cuda_graph_batch_sizes": Setting(
        "batch sizes, in requests, that decoding has CUDA graphs for",
        ({"--cuda-graph-bs-decode": VALUE}, {"--cuda-graph-bs": VALUE}),
    ),
    "cuda_graphs": Setting(
        "CUDA graphs, for decoding and for prefill",
        (
            {"--cuda-graph-backend-decode": "disabled", "--cuda-graph-backend-prefill": "disabled"},
            # Up to 0.5.13.post1, --disable-cuda-graph leaves the piecewise graphs of prefill on.
            {"--disable-cuda-graph": True, "--disable-piecewise-cuda-graph": True},
        ),
        when_false=True,
    ),
    "prefill_cuda_graphs": Setting(
        "CUDA graphs for prefill",
        ({"--cuda-graph-backend-prefill": "disabled"}, {"--disable-piecewise-cuda-graph": True}),
        when_false=True,
    ),
    "prefill_cuda_graph_max_tokens": Setting(
        "largest prefill, in tokens, that has a CUDA graph",
        ({"--cuda-graph-max-bs-prefill": VALUE}, {"--piecewise-cuda-graph-max-tokens": VALUE}),
        least=1,
    ),
    "prefill_context_parallel": Setting(
        "context parallelism for prefill",
        ({"--enable-prefill-cp": True}, {"--enable-prefill-context-parallel": True}),
    ),
    "expert_waterfill": Setting(
        "the shared expert goes to the expert-parallel rank with the least load",
        ({"--enable-waterfill": True}, {"--enable-deepep-waterfill": True}),
    ),
    "allreduce_fusion": Setting(
        "FlashInfer's all-reduce with the residual RMSNorm in one kernel",
        ({"--flashinfer-allreduce-fusion-backend": "auto"}, {"--enable-flashinfer-allreduce-fusion": True}),
    ),
    "sparse_attention_prefill_backend": Setting(
        "backend of DeepSeek's sparse attention for prefill",
        ({"--dsa-prefill-backend": VALUE}, {"--nsa-prefill-backend": VALUE}),
    ),
    "sparse_attention_decode_backend": Setting(
        "backend of DeepSeek's sparse attention for decoding",
        ({"--dsa-decode-backend": VALUE}, {"--nsa-decode-backend": VALUE}),
    ),
}


def spell(given: Mapping[str, object], table: FlagTable) -> dict[str, object]:
    """The flags, by exact name, that settings (name to value) are in a release. ``check`` must have found no error.

    Null, false and an empty value stand for a setting that is not set.
    """
    spelled: dict[str, object] = {}
    for name, value in _set(given).items():
        spelling = _of(name, table)
        spelled |= {flag: value if fixed is VALUE else fixed for flag, fixed in (spelling or {}).items()}
    return spelled


def check(
    given: Mapping[str, object], others: Mapping[str, object], table: FlagTable, prefix: str = ""
) -> list[Finding]:
    """Judge the settings for a release, and against flags that are given beside them.

    ``others``  exact flags of the user, with or without dashes
    ``prefix``  what stands before a setting's name where the user wrote it
    """
    findings = []
    beside = {
        table[spelling].name: spelling
        for spelling, value in ((flags.exact(flag), value) for flag, value in others.items())
        if spelling in table and not flags.left_out(spelling, value, table[spelling])
    }
    for name, value in _set(given).items():
        setting, spelling = SETTINGS[name], _of(name, table)
        if spelling is None:
            findings.append(_unsupported(prefix + name, name, table))
            continue
        if setting.least is not None and (
            isinstance(value, bool) or not isinstance(value, int) or value < setting.least
        ):
            findings.append(
                Finding(
                    "spelling.range",
                    "error",
                    f"{prefix}{name} is {value}",
                    f"Set it to a whole number from {setting.least} on: {setting.meaning}",
                )
            )
        for flag in (flag for flag, fixed in spelling.items() if fixed is VALUE):
            wrong = errors(flags.check({flag: value}, table))
            findings += [replace(finding, seen=f"{prefix}{name}: {finding.seen}") for finding in wrong]
        about = {table[flag].name for known in setting.spellings for flag in known if flag in table}
        for flag in sorted(about & set(beside)):
            findings.append(
                Finding(
                    "spelling.twice",
                    "error",
                    f"{prefix}{name} and the flag {beside[flag]} say the same, and the last one would win",
                    f"Keep {prefix}{name}, which stays right in other releases",
                )
            )
    return findings


def _set(given: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in given.items() if is_set(name, value)}


def is_set(name: str, value: object) -> bool:
    """Whether a setting's value writes a flag."""
    setting = SETTINGS[name]
    if value is None or setting.when_false or isinstance(value, bool):
        return value is (not setting.when_false)
    return value not in ("", [], setting.off)


def _of(name: str, table: FlagTable) -> Spelling | None:
    """The first spelling of a setting that a release takes; None where it takes none."""
    for spelling in SETTINGS[name].spellings:
        if all(
            flag in table and not table[flag].refused and (value is VALUE or flags.accepts(table[flag], value))
            for flag, value in spelling.items()
        ):
            return spelling
    return None


def _unsupported(shown: str, name: str, table: FlagTable) -> Finding:
    able = [version for version in table.history or () if table.history and _of(name, table.history[version])]
    return Finding(
        "spelling.unsupported",
        "error",
        f"SGLang {table.release} has no flag for {shown} ({SETTINGS[name].meaning})",
        f"Remove {shown}, or use a release from {able[0]} to {able[-1]}" if able else f"Remove {shown}",
        "roles/sglang/files/flags",
    )
