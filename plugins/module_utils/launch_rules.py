# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Launch rules: an engine's flags and environment, its model and its GPUs against a release, before anything starts.

One small function a rule; each names its source, and its finding says when SGLang itself would have failed. Releases
that a rule is limited to were read in the published sources of 0.5.10 to 0.5.23. What one flag's name or value says
by itself is judged by ``flags`` and ``flag_history``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from ansible_collections.inference.sglang.plugins.module_utils import flags
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, Severity
from ansible_collections.inference.sglang.plugins.module_utils.flag_history import version_key
from ansible_collections.inference.sglang.plugins.module_utils.flags import FlagTable
from ansible_collections.inference.sglang.plugins.module_utils.memory import MXFP4_PADDING, default_partition
from ansible_collections.inference.sglang.plugins.module_utils.models import Shape
from ansible_collections.inference.sglang.plugins.module_utils.releases import RELEASES

CHECK = "sglang/srt/server_args.py, check_server_args (from 0.5.19 on: srt/arg_groups/validation_hook.py)"
MOE = "sglang/srt/server_args.py of 0.5.12.post1, srt/arg_groups/moe_hook.py of 0.5.23"
ATTENTION = "sglang/srt/server_args.py of 0.5.12.post1, srt/arg_groups/attention_hook.py of 0.5.23"
REGISTRY = "sglang/srt/layers/attention/attention_registry.py"
RANKS = "sglang/srt/entrypoints/engine.py, _launch_scheduler_processes"
MEASURED = "docs/measurements.md"
NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


NEEDS_NO_GRAPHS = ("torch_native", "flex_attention")
"""Attention backends that cannot use CUDA graphs; SGLang disables graphs for them by itself."""

WITHOUT_PIPELINE = _names(
    """
    Cohere2ForCausalLM Cohere2MoeForCausalLM Cohere2VisionForConditionalGeneration CohereForCausalLM DbrxForCausalLM
    DeepseekForCausalLM DeepseekVL2ForCausalLM Ernie4_5_MoeForCausalLM Ernie4_5_VLMoeForConditionalGeneration
    FalconH1ForCausalLM Gemma2ForCausalLM Gemma3ForCausalLM Gemma3ForConditionalGeneration GraniteForCausalLM
    GraniteMoeForCausalLM Grok1ForCausalLM HunYuanMoEV1ForCausalLM HYV3ForCausalLM InternLM2ForCausalLM
    InternS1ForConditionalGeneration InternVLChatModel KimiVLForConditionalGeneration Llama4ForConditionalGeneration
    LongcatFlashForCausalLM MllamaForConditionalGeneration NVILAForConditionalGeneration Olmo2ForCausalLM
    PhiMoEForCausalLM PixtralForConditionalGeneration Qwen2VLForConditionalGeneration Qwen3NextForCausalLM
    Step3VLForConditionalGeneration
    """
)
"""Architectures whose ``forward`` takes no ``pp_proxy_tensors`` in any release: ``srt/models``."""

PIPELINE_SINCE = {
    "Gemma4ForCausalLM": "0.5.13",
    "Gemma4ForConditionalGeneration": "0.5.13",
    "SolarForCausalLM": "0.5.22",
}
"""Those whose ``forward`` takes it from a release on, and did not before."""

GATED_DELTA = _names(
    """
    InternS2PreviewForConditionalGeneration JetNemotronForCausalLM JetVLMForConditionalGeneration Qwen3_5ForCausalLM
    Qwen3_5ForConditionalGeneration Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration Qwen3NextForCausalLM
    """
)
"""Architectures with gated delta net layers: ``hybrid_gdn_config`` in ``srt/configs/hybrid_arch.py`` of 0.5.23."""

WHOLE_GROUP = _names("ascend_fuseep deepep deepep_v2 flashinfer flashinfer_megamoe megamoe mooncake mori nixl pplx")
"""All-to-all backends that set the expert size to the tensor size: ``_A2A_EP_SPANNING_BACKENDS``."""

NVLINK_ONLY = _names("deepep deepep_v2 flashinfer_megamoe megamoe pplx")
"""Those whose kernels write over NVLink and are built for Hopper and SM100: DeepEP, DeepGEMM's MegaMoE, pplx (SM90)."""

SM100_RUNNERS = _names("experimental_sgl_trtllm flashinfer_megamoe flashinfer_trtllm flashinfer_trtllm_routed")
"""MoE runners whose kernels (trtllm-gen, MegaMoE) exist for SM100 and SM103 only: ``srt/arg_groups/overrides.py``."""

REPACKED = {
    "awq_marlin": {"awq": ""},
    "marlin": {"awq": "", "gptq": ""},
    "gptq_marlin": {"gptq": ""},
    "moe_wna16": {"awq": "", "gptq": ""},
    "w8a8_int8": {"compressed-tensors": ""},
    "w8a8_fp8": {"compressed-tensors": ""},
    "auto-round-int8": {"compressed-tensors": "0.5.15"},
    "nvfp4_online": {"fp8": "0.5.14", "modelopt_fp8": "0.5.18"},
    "modelopt_fp4": {"fp8": "0.5.18"},
    "minimax_m3_nvfp4": {"mxfp8": "0.5.23"},
}
"""``--quantization`` that takes a checkpoint of another method, by that method and the release since which it does:
``compatible_quantization_methods`` in ``srt/configs/model_config.py``, ``override_quantization_method`` in
``srt/layers/quantization``."""

REPACKS_ALL = {"quark_mxfp4": "0.5.17", "humming": "0.5.16"}
"""Those that take nearly all: ``REQUANTIZATION_METHODS`` there, and HummingConfig, which leaves out MXFP4."""

LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")
"""NCCL's words for distances, and what its former numbers 0 to 5 stand for: ``src/graph/paths.cc``."""

BARRIER = 480
"""Seconds that a tensor rank waits for the others to have loaded: ``UNBALANCED_MODEL_LOADING_TIMEOUT_S``."""

DEFAULT_GRAPH_BATCH = 256
"""Largest decode graph on cards of 60 to 160 GB with fewer than 4 tensor ranks: ``_handle_gpu_memory_settings``."""

# A name that was looked up without a release's table, in the spelling that the rules use.
_ALIASES = {
    "--attention-data-parallel-size": "--attn-dp-size",
    "--cuda-graph-bs": "--cuda-graph-bs-decode",
    "--cuda-graph-max-bs": "--cuda-graph-max-bs-decode",
    "--data-parallel-size": "--dp-size",
    "--ep": "--ep-size",
    "--expert-parallel-size": "--ep-size",
    "--model": "--model-path",
    "--moe-data-parallel-size": "--moe-dp-size",
    "--nccl-init-addr": "--dist-init-addr",
    "--pipeline-parallel-size": "--pp-size",
    "--tensor-parallel-size": "--tp-size",
}
_OFF = ("0", "false", "no", "n")


class Fails(StrEnum):
    """When SGLang itself says that something is wrong."""

    CHECK = "SGLang refuses it when it checks its arguments, after seconds"
    BUILD = "SGLang fails while it starts its ranks and builds the model, before it reads the weights"
    WAITS = "SGLang starts, and waits for ranks that never come"
    LOADED = "SGLang fails only after the weights are loaded"
    LATE = "SGLang does not refuse it: it fails after the weights are loaded, or at the first request"
    NEVER = "SGLang says nothing"


@dataclass(frozen=True)
class Verdict:
    """What a rule found; ``judge`` makes a finding of it, whose id is the rule's name."""

    seen: str
    fails: Fails
    remedy: str
    source: str
    severity: Severity = "error"


@dataclass(frozen=True)
class Launch:
    """An engine that is to be started on each of its nodes.

    ``release``       SGLang's version; empty where it is not known, and rules that are limited to releases are silent
    ``table``         the release's flags; an empty one where they are not known
    ``flags``         exact names with their dashes, values as given: ``{"--pp-size": 8}``
    ``environment``   variables of the engine
    ``shape``         the model; None where it is not known
    ``architecture``  the model's, where only that is known
    ``capability``    compute capability times ten (120: RTX PRO 6000, 100: B200, 90: H200); None where not known
    ``gpu_count``     GPUs of each node; ``nodes`` how many nodes there are; ``links`` what the GPUs of a node share
    ``patches``       ids that are in force in the installed release; None where nobody looked
    ``concurrency``   requests at a time that are promised; None where nothing is
    ``installed``     distributions and versions beside SGLang; None where nobody looked
    ``others``        release and patches of the instance's other nodes
    ``load_bytes``    weights that a node reads, and ``read_rate`` at how many MB/s
    """

    release: str
    table: FlagTable
    flags: Mapping[str, object]
    environment: Mapping[str, str] = field(default_factory=dict)
    shape: Shape | None = None
    architecture: str = ""
    capability: int | None = None
    gpu_count: int | None = None
    nodes: int | None = None
    links: Literal["pcie", "nvlink"] | None = None
    patches: frozenset[str] | None = None
    concurrency: int | None = None
    installed: Mapping[str, str] | None = None
    others: tuple[tuple[str, frozenset[str]], ...] = ()
    load_bytes: int | None = None
    read_rate: float | None = None

    def given(self, spelling: str) -> Any:
        """The value that was given under any spelling of a flag; None where it is not set."""
        wanted = self._name(spelling)
        for key, value in self.flags.items():
            written = flags.exact(key)
            if self._name(written) == wanted:
                flag = self.table.get(written)
                unset = flags.left_out(written, value, flag) if flag else value in (None, "", [], False)
                if not unset:
                    return value
        return None

    def value(self, spelling: str) -> Any:
        """What was given, or the release's default."""
        given = self.given(spelling)
        flag = self.table.get(spelling)
        return flag.default if given is None and flag else given

    def text(self, spelling: str) -> str:
        """A flag's value as text; empty where it has none."""
        value = self.value(spelling)
        return "" if value is None else str(value)

    def number(self, spelling: str) -> int | None:
        """A flag's value as a whole number; None where it has none, or another one."""
        try:
            return int(self.text(spelling))
        except ValueError:
            return None

    def size(self, spelling: str) -> int:
        """A number of ranks, 1 where nothing is given; none is larger than 65536 here, so that lists can be made."""
        return min(max(self.number(spelling) or 1, 1), 1 << 16)

    def switch(self, spelling: str) -> bool:
        """Whether a switch is on."""
        return self.text(spelling).lower() in ("true", "yes", "1")

    def before(self, release: str) -> bool:
        """Whether the release is known, and older than another."""
        return bool(self.release) and version_key(self.release) < version_key(release)

    def since(self, release: str) -> bool:
        """Whether the release is known, and another one or younger."""
        return bool(self.release) and version_key(self.release) >= version_key(release)

    def off(self, variable: str) -> bool:
        """Whether an environment variable is set to a no of SGLang's."""
        return self.environment.get(variable, "").lower() in _OFF

    def lacks(self, patch: str) -> bool:
        """Whether nothing shows that a patch is in force."""
        return patch not in (self.patches or ())

    @property
    def tensor(self) -> int:
        return self.size("--tp-size")

    @property
    def pipeline(self) -> int:
        return self.size("--pp-size")

    @property
    def node_count(self) -> int:
        """As SGLang is told."""
        return self.size("--nnodes")

    @property
    def attention_data(self) -> int:
        """Groups of tensor ranks that each attend to their own requests."""
        groups = self.size("--attn-dp-size")
        return self.size("--dp-size") if groups == 1 and self.switch("--enable-dp-attention") else groups

    @property
    def replicas(self) -> int:
        """Whole copies of the model."""
        return 1 if self.switch("--enable-dp-attention") else self.size("--dp-size")

    @property
    def all_to_all(self) -> str:
        return self.text("--moe-a2a-backend") or "none"

    @property
    def expert(self) -> int:
        """Expert-parallel ranks, as an all-to-all backend leaves them."""
        return self.tensor if self.all_to_all in WHOLE_GROUP else self.size("--ep-size")

    @property
    def expert_tensor(self) -> int:
        """Ranks that share each expert; 0 where the sizes do not go together."""
        return self.tensor // self.expert // self.size("--moe-dp-size")

    @property
    def depth(self) -> int:
        return max(self.number("--pp-async-batch-depth") or 0, 0)

    @property
    def slots(self) -> int:
        """Micro-batches that are on their way: ``pp_loop_size`` in ``srt/managers/scheduler_pp_mixin.py``."""
        return self.pipeline + self.depth

    @property
    def running(self) -> int | None:
        """Requests at a time that each engine is told to run; None where SGLang is to find out."""
        return self.number("--max-running-requests")

    @property
    def micro_batch(self) -> int | None:
        """Requests that one micro-batch may take; None where that follows from what SGLang finds out.

        ``pp_max_micro_batch_size`` in ``Scheduler.__init__``: by default the running requests over the stages, the
        async depth not counted.
        """
        given = self.number("--pp-max-micro-batch-size")
        return given or (max(self.running // self.pipeline, 1) if self.running else None)

    @property
    def family(self) -> int | None:
        """The first number of the compute capability: 12 for SM120."""
        return None if self.capability is None else self.capability // 10

    @property
    def model(self) -> str:
        return self.shape.architecture if self.shape else self.architecture

    @property
    def backends(self) -> tuple[str, str]:
        """Attention backends of prefill and of decoding; empty where SGLang's choice is not known."""
        both = self.text("--attention-backend") or self._default_backend()
        return self.text("--prefill-attention-backend") or both, self.text("--decode-attention-backend") or both

    @property
    def graph_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """``--cuda-graph-config``, by phase."""
        value = self.given("--cuda-graph-config")
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                value = None
        phases = value.items() if isinstance(value, Mapping) else ()
        return {str(phase): settings for phase, settings in phases if isinstance(settings, Mapping)}

    @property
    def disabled_by(self) -> str:
        """The flag that disables CUDA graphs for decoding; empty where none does.

        The order is that of ``parse_cuda_graph_config`` in ``srt/arg_groups/cuda_graph_hook.py`` of 0.5.23.
        """
        for name, chosen in (
            ("--cuda-graph-config", self.graph_settings.get("decode", {}).get("backend")),
            ("--cuda-graph-backend-decode", self.given("--cuda-graph-backend-decode")),
        ):
            if chosen is not None:
                return name if chosen == "disabled" else ""
        return next((name for name in ("--disable-decode-cuda-graph", "--disable-cuda-graph") if self.switch(name)), "")

    @property
    def needs_no_graphs(self) -> bool:
        """Whether SGLang disables decode graphs by itself, or has none to disable.

        ``srt/server_args.py`` of 0.5.12.post1, ``srt/arg_groups`` of 0.5.23: not for pipeline stages, SM120 or Triton.
        """
        return (
            self.text("--attention-backend") in NEEDS_NO_GRAPHS
            or (self.all_to_all == "deepep" and self.text("--deepep-mode") == "normal")
            or self.text("--disaggregation-mode") == "prefill"
            or self.text("--device") not in ("", "cuda", "auto")
            or self.switch("--enable-mis")
            or any(self.given(flag) for flag in ("--debug-tensor-dump-output-folder", "--msprobe-dump-config"))
        )

    @property
    def graphs(self) -> bool:
        """Whether decoding uses CUDA graphs."""
        return not (self.disabled_by or self.needs_no_graphs)

    @property
    def graph_batch(self) -> int | None:
        """Largest batch, in requests, that decode graphs are asked for; None where SGLang chooses."""
        settings = self.graph_settings.get("decode", {})
        given = [settings.get("max_bs"), *_list(settings.get("bs"))]
        for name in ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs", "--cuda-graph-bs-decode", "--cuda-graph-bs"):
            given += _list(self.given(name))
        numbers = [int(str(value)) for value in given if str(value).isdecimal()]
        return max(numbers, default=None)

    @property
    def partition(self) -> tuple[int, ...]:
        """Layers of each stage: SGLANG_PP_LAYER_PARTITION, or SGLang's own; empty where they are not known."""
        text = self.environment.get("SGLANG_PP_LAYER_PARTITION")
        if text is None:
            return default_partition(len(self.shape.layers), self.pipeline) if self.shape else ()
        parts = text.split(",")
        return tuple(int(part) for part in parts) if all(part.strip().isdecimal() for part in parts) else ()

    @property
    def images(self) -> bool:
        """Whether images reach the model's vision tower: ``handle_gpu_memory_settings`` of 0.5.23."""
        language = self.switch("--language-only") or self.switch("--language-model-only")
        seeing = self.shape is not None and self.shape.vision.bytes > 0
        return seeing and not language and self.text("--disaggregation-mode") != "decode"

    @property
    def speculation(self) -> str:
        """``--speculative-algorithm``; empty without one."""
        return self.text("--speculative-algorithm").upper()

    @property
    def own_draft(self) -> bool:
        """Whether the draft model is the model's own draft layers: ``_handle_speculative_decoding``."""
        path = self.text("--speculative-draft-model-path")
        own = self.shape is not None and bool(self.shape.draft_layers) and path in ("", self.text("--model-path"))
        return own and self.speculation in ("EAGLE", "NEXTN")

    @property
    def mxfp4_padding(self) -> tuple[int, int]:
        """Multiples to which both sides of an MXFP4 expert are padded, the hidden one first.

        Source: the runner by default in ``srt/server_args.py`` of 0.5.12.post1 and ``srt/arg_groups`` of 0.5.23
        (GptOssForCausalLM), ``FusedMoE.__init__``, and ``create_weights`` in ``srt/layers/quantization/mxfp4.py``.
        """
        runner, family = self.text("--moe-runner-backend") or "auto", self.family
        if not self.release or family is None:
            return MXFP4_PADDING
        if runner == "auto":
            runner = "flashinfer_mxfp4" if family == 10 else "triton_kernel"
            if family == 12 and self.since("0.5.14"):
                runner = "marlin" if self.before("0.5.17") else "flashinfer_mxfp4"
        if runner == "flashinfer_mxfp4":
            return 256, 256 if family == 10 and self.before("0.5.17") else 128
        return (256, 128) if runner == "marlin" and self.since("0.5.14") else (1, 64)

    def _name(self, spelling: str) -> str:
        flag = self.table.get(spelling)
        return flag.name if flag else _ALIASES.get(spelling, spelling)

    def _default_backend(self) -> str:
        """Source: ``_get_default_attn_backend``, ``srt/server_args.py`` of 0.5.12.post1, ``model_override_base.py`` of
        0.5.23. SM100, where it depends on the architecture, and flashinfer elsewhere are not told.
        """
        if self.shape is None or self.family not in (8, 9, 12):
            return ""
        if self.family == 9:
            return "fa3"
        return "triton" if self.shape.attention == "mla" or self.model == "GptOssForCausalLM" else ""


Rule = Callable[[Launch], "Verdict | None"]


def judge(launch: Launch) -> list[Finding]:
    """Every rule's findings, in the order of ``RULES``."""
    verdicts = ((rule.__name__, rule(launch)) for rule in RULES)
    return [
        Finding(f"launch.{name}", verdict.severity, f"{verdict.seen}; {verdict.fails}", verdict.remedy, verdict.source)
        for name, verdict in verdicts
        if verdict
    ]


# Nodes, ranks and GPUs.


def nodes(launch: Launch) -> Verdict | None:
    """Every node must start its share of the ranks. Source: ``_calculate_rank_ranges`` in ``entrypoints/engine.py``."""
    if launch.nodes in (None, launch.node_count):
        return None
    seen = f"--nnodes is {launch.node_count}, and the instance has {launch.nodes} nodes"
    return Verdict(seen, Fails.WAITS, f"Set --nnodes to {launch.nodes}", RANKS)


def node_rank(launch: Launch) -> Verdict | None:
    """Ranks are counted from 0. Source: ``_calculate_rank_ranges``."""
    rank = launch.number("--node-rank") or 0
    if 0 <= rank < launch.node_count:
        return None
    seen = f"--node-rank is {rank} of {launch.node_count} nodes"
    return Verdict(seen, Fails.WAITS, "Number the nodes from 0, and set --nnodes to their number", RANKS)


def rendezvous(launch: Launch) -> Verdict | None:
    """Without an address each node waits at its own. Source: ``PortArgs.init_new`` in ``srt/server_args.py``."""
    if launch.node_count == 1 or launch.given("--dist-init-addr"):
        return None
    seen = f"--nnodes is {launch.node_count} without --dist-init-addr, and each node waits at its own loopback address"
    return Verdict(seen, Fails.WAITS, "Set --dist-init-addr to address and port of the first node", RANKS)


def node_division(launch: Launch) -> Verdict | None:
    """Source: ``check_server_args``."""
    ranks, count = launch.tensor * launch.pipeline, launch.node_count
    if ranks % count == 0:
        return None
    seen = f"{ranks} ranks (tensor {launch.tensor}, pipeline {launch.pipeline}) do not divide over {count} nodes"
    return Verdict(seen, Fails.CHECK, "Use sizes whose product the number of nodes divides", CHECK)


def node_layout(launch: Launch) -> Verdict | None:
    """Some layouts pass that check, and leave out ranks or start some twice. Source: ``_calculate_rank_ranges``."""
    tensor, pipeline, count = launch.tensor, launch.pipeline, launch.node_count
    if (tensor * pipeline) % count or pipeline % count == 0:
        return None
    if count % pipeline == 0 and tensor % (count // pipeline) == 0:
        return None
    seen = f"pipeline size {pipeline} does not go into {count} nodes, or they into it: some ranks are on no node"
    remedy = (
        "Use a pipeline size that is a multiple of the nodes, or a divisor with the tensor size a multiple of the rest"
    )
    return Verdict(seen, Fails.WAITS, remedy, RANKS)


def gpu_numbers(launch: Launch) -> Verdict | None:
    """Source: ``check_server_args``."""
    base, step = launch.number("--base-gpu-id") or 0, launch.number("--gpu-id-step")
    if base >= 0 and (step is None or step >= 1):
        return None
    seen = f"--base-gpu-id is {base}, --gpu-id-step {step}"
    return Verdict(seen, Fails.CHECK, "Use a base from 0 and a step from 1 on", CHECK)


def gpus(launch: Launch) -> Verdict | None:
    """A rank whose GPU is not there. Source: ``gpu_id`` in ``srt/entrypoints/engine.py`` and
    ``srt/managers/data_parallel_controller.py``.
    """
    count = launch.gpu_count
    listed = launch.environment.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        visible = sum(bool(part.strip()) for part in listed.split(","))
        count = visible if count is None else min(count, visible)
    used = _local_gpus(launch)
    if count is None or max(used) < count:
        return None
    seen = (
        f"tensor {launch.tensor}, pipeline {launch.pipeline} and {launch.replicas} replica(s) on {launch.node_count} "
        f"node(s) use GPU {max(used)} of a node on which the engine sees {count} (0 to {count - 1})"
    )
    return Verdict(seen, Fails.BUILD, f"Use sizes for {count} GPUs a node, or more nodes", RANKS)


def gpu_overlap(launch: Launch) -> Verdict | None:
    """The step counts for tensor ranks and not for stages, so that stages may share a GPU. Source: as ``gpus``."""
    used = _local_gpus(launch)
    twice = sorted({number for number in used if used.count(number) > 1})
    if not twice:
        return None
    seen = f"--gpu-id-step {launch.number('--gpu-id-step')} puts two ranks on GPU {twice[0]}"
    return Verdict(seen, Fails.BUILD, "Set CUDA_VISIBLE_DEVICES in the place of a step", RANKS)


# What pipeline parallelism excludes.


def pipeline_excludes(launch: Launch) -> Verdict | None:
    """Source: ``check_server_args``, ``_handle_context_parallelism``, ``_handle_elastic_ep``."""
    asked = {
        "--enable-pdmux": launch.switch("--enable-pdmux"),
        "--moe-dp-size": launch.size("--moe-dp-size") > 1,
        "--elastic-ep-backend": launch.since("0.5.11") and launch.given("--elastic-ep-backend") is not None,
        "--min-free-slots-delay": launch.since("0.5.18") and launch.given("--min-free-slots-delay") is not None,
    }
    named = [name for name, set_ in asked.items() if set_]
    if launch.pipeline == 1 or not named:
        return None
    seen = f"--pp-size is {launch.pipeline} beside {' and '.join(named)}"
    return Verdict(seen, Fails.CHECK, f"Remove {' and '.join(named)}, or use --pp-size 1", CHECK)


def pipeline_delay(launch: Launch) -> Verdict | None:
    """Before it was refused, the delay could wait for ever: a micro-batch may never have so many free slots.

    Source: the assertion of 0.5.18 in ``check_server_args``.
    """
    asked = launch.given("--min-free-slots-delay") is not None and launch.before("0.5.18")
    if launch.pipeline == 1 or not asked:
        return None
    seen = f"--min-free-slots-delay beside --pp-size {launch.pipeline} may wait for slots that never get free"
    return Verdict(seen, Fails.NEVER, "Remove --min-free-slots-delay", CHECK)


def pipeline_speculation(launch: Launch) -> Verdict | None:
    """Up to 0.5.20 none at all (on CUDA); then EAGLE, on prefill servers or behind a variable, and DSPARK on prefill
    servers. Source: ``check_pipeline_parallel_compat`` in ``srt/arg_groups/validation_hook.py`` of 0.5.21.
    """
    algorithm = launch.text("--speculative-algorithm").upper()
    if launch.pipeline == 1 or not algorithm or not launch.release:
        return None
    seen = f"--speculative-algorithm {algorithm} beside --pp-size {launch.pipeline} in SGLang {launch.release}"
    if launch.before("0.5.21"):
        return Verdict(seen, Fails.CHECK, "Remove --speculative-algorithm", CHECK)
    mode = launch.text("--disaggregation-mode") or "null"
    variable = launch.environment.get("SGLANG_ENABLE_PP_SPEC", "0").lower() not in _OFF
    eagle = algorithm in ("EAGLE", "NEXTN") and not launch.switch("--enable-multi-layer-eagle")
    whole = mode == "null" and not launch.switch("--speculative-adaptive") and launch.attention_data == 1
    if (eagle and (whole if variable else mode == "prefill")) or (
        algorithm == "DSPARK" and mode == "prefill" and not variable
    ):
        return None
    remedy = "Remove it, or use EAGLE with SGLANG_ENABLE_PP_SPEC=1, neither adaptive nor with attention groups"
    return Verdict(seen, Fails.CHECK, remedy, CHECK)


def pipeline_model(launch: Launch) -> Verdict | None:
    """A model must hand hidden states on. Source: ``ModelRunner.__init__``; seen after an hour in
    sgl-project/sglang#18925.
    """
    since = PIPELINE_SINCE.get(launch.model, "")
    if launch.pipeline == 1 or not (launch.model in WITHOUT_PIPELINE or (since and launch.before(since))):
        return None
    seen = f"{launch.model} cannot be split into stages" + (f" before SGLang {since}" if since else "")
    remedy = "Use --pp-size 1 and a larger --tp-size" + (f", or SGLang {since} or later" if since else "")
    return Verdict(seen, Fails.LOADED, remedy, "sgl-project/sglang#18925")


# Patches.


def patch_layer_probe(launch: Launch) -> Verdict | None:
    """Every stage asks its pool for layer 0. Two stages, and some others, start by the chance of a negative index.

    Source: ``TritonAttnBackend.__init__`` in ``srt/layers/attention/triton_backend.py`` up to 0.5.17.
    """
    needed = launch.pipeline > 1 and launch.before("0.5.18") and "triton" in launch.backends
    if not needed or not launch.lacks("triton-layer-probe"):
        return None
    parts = launch.partition
    starts = itertools.accumulate(parts, initial=0)
    failing = [stage for stage, (start, layers) in enumerate(zip(starts, parts, strict=False)) if start > layers]
    if failing:
        what = f"stage(s) {_numbers(failing)} of {launch.pipeline} end with IndexError"
    elif parts:
        what = f"stages of {','.join(map(str, parts))} layers start only because Python counts from the end"
    else:
        what = "stages from the third on end with IndexError"
    return _missing_patch(launch, "triton-layer-probe", what, "sgl-project/sglang#30335")


def patch_window_pool(launch: Launch) -> Verdict | None:
    """The pool of sliding-window layers says that it starts at layer 0, on every stage.

    Source: ``SWAKVPool`` in ``srt/mem_cache/swa_memory_pool.py`` of every release; measured, docs/measurements.md.
    """
    needed = launch.pipeline > 1 and bool(launch.release) and "triton" in launch.backends
    if not needed or not (launch.shape and launch.shape.split_pool) or not launch.lacks("swa-start-layer"):
        return None
    what = "each stage of this sliding-window model but the first ends with KeyError"
    return _missing_patch(launch, "swa-start-layer", what, MEASURED)


def patch_abort(launch: Launch) -> Verdict | None:
    """An abort looks at two slots only. Source: ``Scheduler.abort_request`` before 0.5.16, sgl-project/sglang#29405."""
    needed = launch.pipeline > 1 and launch.slots > 2 and launch.before("0.5.16")
    if not needed or not launch.lacks("pp-abort"):
        return None
    seen = f"with {launch.slots} micro-batch slots, requests whose client has gone are answered to their last token"
    remedy = "Install the release with patch pp-abort, or use 0.5.16 or later"
    return _warning(seen, Fails.NEVER, remedy, "sgl-project/sglang#29405")


# Model and layout.


def partition(launch: Launch) -> Verdict | None:
    """One number a stage, all layers in sum. Source: ``get_pp_indices`` in ``srt/distributed/utils.py``; from 0.5.19 on
    it is not read where there is one stage.
    """
    text = launch.environment.get("SGLANG_PP_LAYER_PARTITION")
    if text is None or (launch.pipeline == 1 and not launch.before("0.5.19")):
        return None
    parts, layers = launch.partition, len(launch.shape.layers) if launch.shape else None
    if len(parts) == launch.pipeline and (layers is None or sum(parts) == layers):
        return None
    seen = f"SGLANG_PP_LAYER_PARTITION is {text}: {len(parts)} numbers for {launch.pipeline} stage(s)"
    if layers is not None:
        seen += f", {sum(parts)} layers for the model's {layers}"
    remedy = f"Write {launch.pipeline} whole numbers with commas between them" + (
        f", {layers} in sum" if layers else ""
    )
    return Verdict(seen, Fails.BUILD, remedy, "sglang/srt/distributed/utils.py")


def stages(launch: Launch) -> Verdict | None:
    """Each stage needs a layer. Source: ``get_pp_indices``."""
    parts = launch.partition
    if launch.pipeline == 1 or not parts or min(parts) > 0:
        return None
    if "SGLANG_PP_LAYER_PARTITION" in launch.environment:
        seen = f"SGLANG_PP_LAYER_PARTITION is {','.join(map(str, parts))}: a stage has no layer"
    else:
        seen = f"{sum(parts)} layers leave some of {len(parts)} stages without one"
    return Verdict(seen, Fails.BUILD, "Use fewer stages", "sglang/srt/distributed/utils.py")


def heads(launch: Launch) -> Verdict | None:
    """Attention heads are dealt to tensor ranks. Source: the attention modules of ``srt/models``."""
    ranks = launch.tensor // launch.attention_data // launch.size("--attn-cp-size")
    if launch.shape is None or ranks < 1 or launch.shape.heads % ranks == 0:
        return None
    seen = f"{launch.shape.heads} attention heads do not divide over {ranks} tensor ranks"
    return Verdict(seen, Fails.BUILD, "Use a tensor size that divides the heads", "sglang/srt/models")


def expert_size(launch: Launch) -> Verdict | None:
    """Expert ranks are a part of the tensor ranks. SGLang checks it for FP8 checkpoints alone, and from 0.5.21 on.

    Source: ``_compute_parallelism_ranks`` in ``srt/entrypoints/engine.py`` (a division by zero),
    ``check_quantized_moe_compatibility``, ``_validate_parallel`` in ``srt/runtime_context.py``.
    """
    expert, tensor = launch.expert, launch.tensor
    if tensor % expert == 0:
        return None
    seen = f"--ep-size {expert} does not divide --tp-size {tensor}"
    if expert > tensor or launch.since("0.5.21"):
        fails = Fails.BUILD
    else:
        fails = Fails.LOADED if _blocks(launch) else Fails.NEVER
    remedy = f"Use --tp-size {expert}, whose ranks share out the experts" if expert > tensor else "Use a divisor"
    return Verdict(seen, fails, remedy, "sglang/srt/model_executor/model_runner.py of 0.5.12.post1")


def experts(launch: Launch) -> Verdict | None:
    """Source: ``FusedMoE.__init__`` in ``srt/layers/moe/fused_moe_triton/layer.py``."""
    count = launch.shape.experts + (launch.number("--ep-num-redundant-experts") or 0) if launch.shape else 0
    if count % launch.expert == 0:
        return None
    seen = f"{count} routed experts do not divide over --ep-size {launch.expert}"
    source = "sglang/srt/layers/moe/fused_moe_triton/layer.py"
    return Verdict(seen, Fails.BUILD, f"Use an expert size that divides {count}", source)


def expert_width(launch: Launch) -> Verdict | None:
    """Source: ``FusedMoE.__init__``."""
    width, ranks = (launch.shape.expert_width if launch.shape else 0), launch.expert_tensor
    if ranks < 1 or width % ranks == 0:
        return None
    seen = f"experts {width} wide do not divide over the {ranks} ranks that share each of them"
    source = "sglang/srt/layers/moe/fused_moe_triton/layer.py"
    return Verdict(seen, Fails.BUILD, f"Use a larger --ep-size, up to {launch.tensor}", source)


def expert_blocks(launch: Launch) -> Verdict | None:
    """The share of an expert must be whole FP8 blocks. Source: ``check_quantized_moe_compatibility``."""
    width, ranks, block = (launch.shape.expert_width if launch.shape else 0), launch.expert_tensor, _blocks(launch)
    if not block or ranks < 1 or width % ranks or (width // ranks) % block == 0:
        return None
    if launch.environment.get("SGLANG_SHARED_EXPERT_TP1", "0").lower() not in _OFF:
        return None
    seen = (
        f"experts {width} wide over {ranks} ranks are {width // ranks} each, no whole number of FP8 blocks of {block}"
    )
    source = "sglang/srt/model_executor/model_runner.py of 0.5.12.post1"
    return Verdict(seen, Fails.LOADED, f"Use a larger --ep-size, up to {launch.tensor}", source)


def all_to_all_size(launch: Launch) -> Verdict | None:
    """Source: ``_handle_a2a_moe`` up to 0.5.14, ``_a2a_ep_size`` in ``srt/arg_groups/overrides.py`` since."""
    given = launch.number("--ep-size") if launch.given("--ep-size") is not None else None
    if launch.all_to_all not in WHOLE_GROUP or given in (None, launch.tensor):
        return None
    seen = f"--ep-size is {given}, and --moe-a2a-backend {launch.all_to_all} makes it {launch.tensor}, the tensor size"
    remedy = f"Set --ep-size to {launch.tensor}, or --moe-a2a-backend to none"
    return _warning(seen, Fails.NEVER, remedy, MOE)


def all_to_all_runner(launch: Launch) -> Verdict | None:
    """Source: ``_handle_a2a_moe``, ``handle_a2a_moe``; what auto becomes from 0.5.13 on depends on the checkpoint."""
    runner = launch.text("--moe-runner-backend") or "auto"
    allowed = ["flashinfer_cutlass"]
    for release, more in (
        ("0.5.13", ["flashinfer_cutedsl"]),
        ("0.5.15", ["flashinfer_trtllm_routed"]),
        ("0.5.19", ["flashinfer_trtllm", "deep_gemm"]),
    ):
        allowed += more if launch.since(release) else []
    free = runner == "auto" and not launch.before("0.5.13")
    if launch.all_to_all != "flashinfer" or not launch.release or free or runner in allowed:
        return None
    seen = f"--moe-a2a-backend flashinfer beside --moe-runner-backend {runner}"
    remedy = f"Set --moe-runner-backend to {' or '.join(allowed)}"
    return Verdict(seen, Fails.CHECK, remedy, MOE)


def all_to_all_groups(launch: Launch) -> Verdict | None:
    """FlashInfer's all-to-all wants one attention group a rank. Source: ``_handle_a2a_moe`` from 0.5.13 on."""
    if launch.all_to_all != "flashinfer" or not launch.since("0.5.13") or launch.attention_data == launch.tensor:
        return None
    seen = (
        f"--moe-a2a-backend flashinfer with {launch.attention_data} attention group(s) on {launch.tensor} tensor ranks"
    )
    remedy = f"Use {launch.tensor} groups of data-parallel attention, or --moe-a2a-backend none"
    return Verdict(seen, Fails.CHECK, remedy, MOE)


def all_to_all_hardware(launch: Launch) -> Verdict | None:
    """Source: DeepEP's kernels; ``check_mega_moe_compat`` in ``srt/arg_groups/mega_moe_hook.py`` of 0.5.21."""
    backend = launch.all_to_all
    if backend not in NVLINK_ONLY or not (launch.family == 12 or launch.links == "pcie"):
        return None
    where = f"SM{launch.capability}" if launch.family == 12 else "GPUs that are linked by PCIe alone"
    refused = launch.family == 12 and "megamoe" in backend and launch.since("0.5.21")
    seen = f"--moe-a2a-backend {backend} on {where}: its kernels want NVLink, and Hopper or SM100"
    remedy = "Set --moe-a2a-backend to none: --ep-size works without"
    return Verdict(seen, Fails.CHECK if refused else Fails.LATE, remedy, MOE)


def two_batches(launch: Launch) -> Verdict | None:
    """Source: ``check_server_args``; data-parallel attention does from 0.5.15 on."""
    enough = launch.attention_data > 1 and not launch.before("0.5.15")
    if not launch.switch("--enable-two-batch-overlap") or launch.all_to_all != "none" or enough:
        return None
    seen = "--enable-two-batch-overlap without an all-to-all backend"
    remedy = "Remove --enable-two-batch-overlap, or set --moe-a2a-backend"
    return Verdict(seen, Fails.CHECK, remedy, CHECK)


def expert_balance(launch: Launch) -> Verdict | None:
    """Source: ``_handle_eplb_and_dispatch``, an assertion without words."""
    if not launch.switch("--enable-eplb") or launch.expert > 1:
        return None
    seen = "--enable-eplb with one expert rank, between which nothing can be balanced"
    return Verdict(seen, Fails.CHECK, "Remove --enable-eplb, or set --ep-size", MOE)


def attention_groups(launch: Launch) -> Verdict | None:
    """Source: ``_handle_data_parallelism``, an assertion without words."""
    if launch.tensor % launch.attention_data == 0:
        return None
    seen = f"{launch.attention_data} attention groups do not divide --tp-size {launch.tensor}"
    source = "sglang/srt/server_args.py of 0.5.12.post1, srt/arg_groups/parallel_hook.py of 0.5.23"
    return Verdict(seen, Fails.CHECK, "Use a divisor of the tensor size", source)


def attention_groups_ignored(launch: Launch) -> Verdict | None:
    """Source: ``_handle_data_parallelism``: with one group the switch is turned off."""
    if not launch.switch("--enable-dp-attention") or launch.attention_data > 1:
        return None
    seen = "--enable-dp-attention without a number of groups has no effect"
    remedy = "Remove it, or set --dp-size (from 0.5.22 on: --attn-dp-size alone)"
    source = "sglang/srt/server_args.py of 0.5.12.post1, srt/arg_groups/parallel_hook.py of 0.5.23"
    return _warning(seen, Fails.NEVER, remedy, source)


def replicas_on_nodes(launch: Launch) -> Verdict | None:
    """Source: ``check_server_args``."""
    if launch.replicas == 1 or launch.node_count == 1:
        return None
    seen = f"--dp-size asks for {launch.replicas} replicas of the model on {launch.node_count} nodes"
    remedy = "Run an instance on each node, with a router before them"
    return Verdict(seen, Fails.CHECK, remedy, CHECK)


# Single settings that only the whole can judge.


def chunk_pages(launch: Launch) -> Verdict | None:
    """A chunk is whole pages; attention groups share it out first. Source: ``check_server_args``."""
    chunk, page = launch.number("--chunked-prefill-size"), launch.number("--page-size") or 1
    forced = {"flashmla": (64,), "cutlass_mla": (128,), "trtllm_mla": (64, 32)}.get(launch.backends[1])
    page = forced[0] if forced and page not in forced else page
    if chunk is None or chunk <= 0 or launch.text("--disaggregation-mode") == "decode":
        return None
    share = chunk // launch.attention_data
    if share % page == 0:
        return None
    seen = f"chunks of {share} tokens (--chunked-prefill-size {chunk}) are no whole number of pages of {page}"
    remedy = f"Set --chunked-prefill-size to a multiple of {page * launch.attention_data}"
    return Verdict(seen, Fails.CHECK, remedy, CHECK)


def micro_batch(launch: Launch) -> Verdict | None:
    """Source: ``check_server_args`` for the lower limit; none for the upper one."""
    given, running = launch.number("--pp-max-micro-batch-size"), launch.running
    if given is None or (given >= 1 and (running is None or given <= running)):
        return None
    if given < 1:
        seen = f"--pp-max-micro-batch-size is {given}"
        return Verdict(seen, Fails.CHECK, "Use a number from 1 on", CHECK)
    seen = f"--pp-max-micro-batch-size {given} is more than --max-running-requests {running}"
    return Verdict(seen, Fails.NEVER, f"Use at most {running}, divided among the slots", CHECK)


def dense_tensor_size(launch: Launch) -> Verdict | None:
    """Source: ``check_server_args``; the tensor size is allowed from 0.5.13 on."""
    size = launch.number("--moe-dense-tp-size")
    if not launch.release or size in (None, 1) or (size == launch.tensor and launch.since("0.5.13")):
        return None
    seen = f"--moe-dense-tp-size is {size}"
    return Verdict(seen, Fails.CHECK, "Use 1, or leave it out", CHECK)


def served_name(launch: Launch) -> Verdict | None:
    """A colon is for adapters; the default name is the model's path. Source: ``check_server_args``."""
    name = launch.text("--served-model-name") or launch.text("--model-path")
    if ":" not in name or name.lower().startswith(("s3://", "gs://", "az://")):
        return None
    remedy = "Set --served-model-name to a name without a colon"
    return Verdict(f"the served name {name!r} has a colon", Fails.CHECK, remedy, CHECK)


def graph_padding(launch: Launch) -> Verdict | None:
    """Each batch size would be compiled by itself. Source: ``check_server_args`` from 0.5.12 on."""
    if not (launch.switch("--disable-cuda-graph-padding") and launch.switch("--enable-torch-compile")):
        return None
    seen = "--disable-cuda-graph-padding beside --enable-torch-compile compiles every batch size by itself"
    fails = Fails.NEVER if launch.before("0.5.12") else Fails.CHECK
    return Verdict(seen, fails, "Remove one of the two", CHECK)


# Kernels that a GPU does not have.


def attention_hardware(launch: Launch) -> Verdict | None:
    """Source: ``_handle_attention_backend_compatibility``, ``attention_registry.py``; sgl-project/sglang#24633 for
    trtllm_mla, which passes SGLang's check on SM120 and whose prefill kernel does not exist there.
    """
    for phase, backend in zip(("prefill", "decode"), launch.backends, strict=True):
        fails = _lacks_attention(launch, phase, backend)
        name = f"--{phase}-attention-backend"
        name = name if launch.given(name) is not None else "--attention-backend"
        if fails and launch.given(name) is not None:
            seen = f"{name} {backend}: {phase} has no such kernel on SM{launch.capability}"
            remedy = f"Set {name} to triton" if launch.family == 12 else f"Leave {name} out"
            return Verdict(seen, fails, remedy, ATTENTION)
    return None


def attention_model(launch: Launch) -> Verdict | None:
    """Source: ``attention_registry.py``."""
    latent = {"trtllm_mla": True, "tokenspeed_mla": True, "cutedsl_mla": True, "trtllm_mha": False, "hpc_ops": False}
    if launch.shape is None:
        return None
    for backend in launch.backends:
        if latent.get(backend, launch.shape.attention == "mla") != (launch.shape.attention == "mla"):
            kind = "multi-head latent attention" if launch.shape.attention == "mla" else "grouped-query attention"
            seen = f"attention backend {backend} does not serve {launch.model}, which has {kind}"
            remedy = "Leave the attention backend out, or use triton"
            return Verdict(seen, Fails.LOADED, remedy, REGISTRY)
    return None


def hybrid_attention(launch: Launch) -> Verdict | None:
    """Models with gated delta net layers take few backends on Blackwell. Source: ``attn_backend_wrapper``."""
    if launch.model not in GATED_DELTA or launch.family not in (10, 12) or not launch.release:
        return None
    allowed = {"triton", "trtllm_mha", "fa4", "flashinfer"}
    if launch.since("0.5.16"):
        allowed -= {"fa4"} if launch.family == 12 else {"flashinfer"} if launch.before("0.5.21") else set()
    wrong = [backend for backend in launch.backends if backend and backend not in allowed]
    if not wrong:
        return None
    seen = f"attention backend {wrong[0]} for {launch.model} on SM{launch.capability} in SGLang {launch.release}"
    return Verdict(seen, Fails.LOADED, f"Use {' or '.join(sorted(allowed))}", REGISTRY)


def moe_hardware(launch: Launch) -> Verdict | None:
    """Source: ``_moe_runner_backend_quant_constraints`` in ``srt/arg_groups/overrides.py``: trtllm-gen is for SM100."""
    runner, quantization = launch.text("--moe-runner-backend"), launch.text("--quantization")
    if launch.family in (None, 10) or not (runner in SM100_RUNNERS or quantization == "nvfp4_online"):
        return None
    if quantization == "nvfp4_online":
        seen, fails = f"--quantization nvfp4_online on SM{launch.capability}", Fails.CHECK
        remedy = "Serve a checkpoint that is quantised already"
    else:
        seen, fails = f"--moe-runner-backend {runner} on SM{launch.capability}", Fails.LATE
        remedy = "Leave --moe-runner-backend out"
    return Verdict(f"{seen}: its kernels are for SM100 and SM103", fails, remedy, MOE)


def fp4_runner(launch: Launch) -> Verdict | None:
    """NVFP4 experts on SM120 need a runner by name before 0.5.13. Source: ``srt/server_args.py`` of 0.5.13."""
    fp4 = launch.text("--quantization") == "modelopt_fp4" or bool(
        launch.shape and launch.shape.experts and launch.shape.weight_format.name == "nvfp4"
    )
    auto = (launch.text("--moe-runner-backend") or "auto") == "auto"
    if not (fp4 and auto and launch.family == 12 and launch.before("0.5.13")):
        return None
    seen = f"NVFP4 experts on SM{launch.capability} without --moe-runner-backend, in SGLang {launch.release}"
    return Verdict(seen, Fails.LATE, "Set --moe-runner-backend to flashinfer_cutlass", MOE)


def quantization(launch: Launch) -> Verdict | None:
    """A packed checkpoint is served as it is. Source: ``_verify_quantization`` in ``srt/configs/model_config.py``."""
    given = launch.text("--quantization").lower()
    stored = launch.shape.quantization.replace("_tensors", "-tensors") if launch.shape else ""
    if not stored or given in ("", "unquant", stored) or (stored.startswith("modelopt") and given != "nvfp4_online"):
        return None  # what a ModelOpt checkpoint says wins
    since = REPACKED.get(given, {}).get(stored, None if stored == "mxfp4" else REPACKS_ALL.get(given))
    if since is not None and (launch.since(since) or not (since and launch.release)):
        return None
    seen = f"--quantization {given} for a checkpoint that is packed by {stored}"
    if since:
        seen += f", which SGLang takes from {since} on"
    remedy = "Leave --quantization out: SGLang reads the checkpoint's own"
    return Verdict(seen, Fails.CHECK, remedy, "sglang/srt/configs/model_config.py, _verify_quantization")


def kv_type(launch: Launch) -> Verdict | None:
    """Source: ``srt/server_args.py`` of 0.5.16, ``srt/arg_groups/kv_cache_hook.py`` of 0.5.19 and later."""
    if launch.text("--kv-cache-dtype") != "nvfp4" or launch.family in (None, 10, 12):
        return None
    seen = f"--kv-cache-dtype nvfp4 on SM{launch.capability}"
    remedy = "Use fp8_e4m3, or fp4_mx_block16"
    return Verdict(seen, Fails.CHECK, remedy, "sglang/srt/arg_groups/kv_cache_hook.py of 0.5.23")


def expert_runner(launch: Launch) -> Verdict | None:
    """Source: ``_handle_moe_kernel_config``."""
    runner, expert = launch.text("--moe-runner-backend"), launch.expert
    eight = launch.text("--quantization") in ("fp8", "mxfp8")
    allowed = [1, launch.tensor] if runner in ("flashinfer_cutlass", "flashinfer_cutedsl") else []
    if runner == "cutlass" and eight:
        allowed = [1]
    if not allowed or expert in allowed:
        return None
    seen = f"--moe-runner-backend {runner} with --ep-size {expert}"
    remedy = f"Use --ep-size {' or '.join(map(str, allowed))}"
    return Verdict(seen, Fails.CHECK, remedy, MOE)


def deep_gemm(launch: Launch) -> Verdict | None:
    """Source: known fault ``deep-gemm-sm120`` of ``releases``; up to 0.5.20 SM121 is not told from SM100 either.

    DeepGEMM multiplies FP8 blocks; where the model is known and has none, it is not used.
    """
    release = RELEASES.get(launch.release)
    known = [fault for fault in release.known_faults if fault.id == "deep-gemm-sm120"] if release else []
    meant = launch.family == 12 and (known or (launch.capability == 121 and launch.before("0.5.21")))
    unused = launch.shape is not None and not _blocks(launch)
    if not meant or unused or launch.off("SGLANG_ENABLE_JIT_DEEPGEMM"):
        return None
    seen = f"DeepGEMM is on in SGLang {launch.release}, and has no kernels for SM{launch.capability}"
    source = known[0].source if known else "sglang/srt/layers/deep_gemm_wrapper/configurer.py of 0.5.20"
    remedy = "Set SGLANG_ENABLE_JIT_DEEPGEMM=0 in the engine's environment"
    return Verdict(seen, Fails.LATE, remedy, source, "error" if launch.shape else "warning")


# What is installed, and where.


def installed(launch: Launch) -> Verdict | None:
    """A cubin or JIT cache of another FlashInfer makes its import fail before 0.7. Source: ``flashinfer/jit/env.py``;
    the other two are SGLang's pins.
    """
    release = RELEASES.get(launch.release)
    if launch.installed is None or release is None:
        return None
    here = {name: version.partition("+")[0] for name, version in launch.installed.items()}
    flashinfer = here.get("flashinfer-python", release.flashinfer)
    for name in ("flashinfer-cubin", "flashinfer-jit-cache"):
        if name in here and here[name] != flashinfer and version_key(flashinfer) < version_key("0.7"):
            seen = f"{name} {here[name]} beside flashinfer-python {flashinfer}, whose import it ends"
            source = "sgl-project/sglang#37377"
            return Verdict(seen, Fails.BUILD, f"Uninstall {name}", source)
    for name, pinned in (("flashinfer-python", release.flashinfer), ("sglang-kernel", release.kernel)):
        if here.get(name, pinned) != pinned:
            seen = f"{name} is {here[name]}, and SGLang {launch.release} is made for {pinned}"
            return _warning(seen, Fails.NEVER, f"Install {name}=={pinned}", "SGLang's own requirements")
    return None


def other_nodes(launch: Launch) -> Verdict | None:
    """Ranks talk to each other in the words of one release. Source: none of SGLang's; it compares nothing."""
    own = (launch.release, launch.patches or frozenset())
    strange = [other for other in launch.others if other != own]
    if not strange:
        return None
    told = f"{strange[0][0]} with {', '.join(sorted(strange[0][1])) or 'no patches'}"
    seen = (
        f"another node of the instance has {told}, this one {own[0]} with {', '.join(sorted(own[1])) or 'no patches'}"
    )
    return Verdict(seen, Fails.LATE, "Install the same release with the same patches on all nodes", "")


def load_barrier(launch: Launch) -> Verdict | None:
    """Tensor ranks wait a fixed time for each other's loading. Source: ``UNBALANCED_MODEL_LOADING_TIMEOUT_S``, the same
    in all releases; sgl-project/sglang#39629.
    """
    if launch.tensor == 1 or not launch.load_bytes or not launch.read_rate:
        return None
    seconds = launch.load_bytes / 1e6 / launch.read_rate
    if seconds <= BARRIER / 1.2:
        return None
    size = f"{launch.load_bytes / 1e9:.0f} GB at {launch.read_rate:.0f} MB/s"
    seen = f"{size} take {seconds:.0f} s, and tensor ranks wait {BARRIER} s for each other"
    remedy = "Read the files once before the start, so that they are in the page cache, or use a faster disk"
    severity: Severity = "error" if seconds > BARRIER else "warning"
    return Verdict(seen, Fails.LATE, remedy, "sgl-project/sglang#39629", severity)


# What makes an engine slow.


def graphs_disabled(launch: Launch) -> Verdict | None:
    """Six to ten times slower on two GPUs. Source: docs/measurements.md; who needs it: ``needs_no_graphs``."""
    if not launch.disabled_by or launch.needs_no_graphs:
        return None
    backend = launch.backends[1] or "the attention backend"
    seen = f"{launch.disabled_by} disables CUDA graphs, though {backend} does not need that: six to ten times slower"
    return _warning(seen, Fails.NEVER, f"Remove {launch.disabled_by}", MEASURED)


def graph_batch(launch: Launch) -> Verdict | None:
    """A stage decodes one micro-batch at a time. Source: ``srt/model_executor/cuda_graph_runner.py`` of 0.5.12.post1,
    which cuts the sizes to the running requests and not to the micro-batch.
    """
    batch, most = launch.graph_batch, launch.micro_batch
    if launch.pipeline == 1 or not launch.graphs or most is None:
        return None
    reach = min(batch or DEFAULT_GRAPH_BATCH, launch.running or DEFAULT_GRAPH_BATCH)
    if reach <= most:
        return None
    asked = "" if batch else f"SGLang's own choice, {DEFAULT_GRAPH_BATCH} on cards of 60 GB or more, "
    seen = f"{asked}captures decode graphs up to {reach} requests, and a micro-batch holds {most} at most".lstrip()
    seen = seen if asked else f"--cuda-graph-max-bs {batch} {seen}"
    name = "--cuda-graph-max-bs" if launch.before("0.5.14") else "--cuda-graph-max-bs-decode"
    remedy = f"Set {name} to {most}: graphs that are never used take memory"
    return _warning(seen, Fails.NEVER, remedy, "sglang/srt/model_executor/cuda_graph_runner.py")


def graph_batch_small(launch: Launch) -> Verdict | None:
    """Larger batches run without a graph. Source: ``can_run`` in ``srt/model_executor/cuda_graph_runner.py``."""
    most = launch.micro_batch if launch.pipeline > 1 else launch.concurrency
    if most is None or not launch.graphs or launch.graph_batch is None or launch.attention_data > 1:
        return None
    most = min(most, launch.running or most)
    if launch.graph_batch >= most:
        return None
    seen = f"decode graphs go up to {launch.graph_batch} requests, batches up to {most}: larger ones have no graph"
    name = "--cuda-graph-max-bs" if launch.before("0.5.14") else "--cuda-graph-max-bs-decode"
    source = "sglang/srt/model_executor/cuda_graph_runner.py"
    return _warning(seen, Fails.NEVER, f"Set {name} to {most}", source)


def prefill_graphs(launch: Launch) -> Verdict | None:
    """Asking for prefill graphs by name skips SGLang's own checks. Source: ``_handle_piecewise_cuda_graph`` up to
    0.5.13.post1, ``_apply_cuda_graph_compatibility`` since.
    """
    chosen = launch.graph_settings.get("prefill", {}).get("backend") or launch.given("--cuda-graph-backend-prefill")
    if chosen is None and launch.switch("--enforce-piecewise-cuda-graph"):
        chosen = "tc_piecewise"
    latent = launch.shape is not None and launch.shape.attention == "mla"
    if chosen == "tc_piecewise" and launch.pipeline > 1:
        why = "pipeline parallelism"
    elif chosen == "breakable" and latent and launch.since("0.5.14") and launch.before("0.5.17"):
        why = "multi-head latent attention"
    else:
        return None
    seen = f"prefill graphs of kind {chosen} are forced, which SGLang would leave out for {why}"
    remedy = "Leave the prefill graphs to SGLang"
    return _warning(seen, Fails.LATE, remedy, "sglang/srt/arg_groups/cuda_graph_hook.py of 0.5.19")


def async_depth(launch: Launch) -> Verdict | None:
    """One more slot hides the exchange of outputs, and takes nearly all of the gain; more of them cost where fewer
    slots are busy, and wrong outputs were reported. Source: docs/measurements.md, sgl-project/sglang#15527.
    """
    if launch.pipeline == 1 or launch.depth <= 2:
        return None
    seen = (
        f"--pp-async-batch-depth {launch.depth} is above what helps: with fewer than {launch.slots} busy slots it "
        "leaves stages idle, and wrong outputs were reported above 1"
    )
    remedy = "Use 0 for few requests at a time, 1 for throughput, and 2 at most"
    return _warning(seen, Fails.NEVER, remedy, f"{MEASURED}, sgl-project/sglang#15527")


def async_depth_ignored(launch: Launch) -> Verdict | None:
    """Source: ``event_loop_pp`` in ``srt/managers/scheduler_pp_mixin.py``, which one stage does not run."""
    if launch.pipeline > 1 or launch.depth == 0:
        return None
    seen = f"--pp-async-batch-depth {launch.depth} has no effect with one stage"
    source = "sglang/srt/managers/scheduler_pp_mixin.py"
    return _info(seen, Fails.NEVER, "Remove --pp-async-batch-depth", source)


def async_depth_nodes(launch: Launch) -> Verdict | None:
    """Every rank sends first, which may block where NCCL's buffers are few. Source: the comment on ``send_first`` in
    ``srt/managers/scheduler_pp_mixin.py`` of 0.5.23, which ended that.
    """
    if launch.pipeline == 1 or launch.depth == 0 or launch.node_count == 1 or not launch.before("0.5.23"):
        return None
    seen = f"--pp-async-batch-depth {launch.depth} over {launch.node_count} nodes: all stages send before they receive"
    remedy = "Use --pp-async-batch-depth 0, or SGLang 0.5.23 or later"
    source = "sglang/srt/managers/scheduler_pp_mixin.py of 0.5.23"
    return _warning(seen, Fails.LATE, remedy, source)


def packed_slot(launch: Launch) -> Verdict | None:
    """Requests stay in the slot that admits them, so what fits into one may keep one stage busy at a time.

    Source: ``event_loop_pp``, and ``pp_max_micro_batch_size`` in ``srt/managers/scheduler.py``.
    """
    if launch.pipeline == 1:
        return None
    most, promised = launch.micro_batch, launch.concurrency
    chosen = launch.number("--pp-max-micro-batch-size") is not None
    if most is not None and (most <= 1 or (most < promised if promised else chosen)):
        return None
    if most is None:
        what = f"an equal part for each of {launch.pipeline} stages of 2048 to 4096 requests, which SGLang chooses"
    else:
        what = (
            f"{most}" if chosen else f"{most} by default ({launch.running} running requests, {launch.pipeline} stages)"
        )
    count = f"all {promised}" if promised else f"{most or 'many'}"
    seen = f"a micro-batch takes {what}, so that {count} requests can be packed into one slot while other stages idle"
    spread = -(-promised // launch.slots) if promised else f"the expected requests at a time over {launch.slots} slots"
    remedy = f"Set --pp-max-micro-batch-size to {spread}"
    return _warning(seen, Fails.NEVER, remedy, "sglang/srt/managers/scheduler.py")


def running_requests(launch: Launch) -> Verdict | None:
    """The slots are filled from the running requests. Source: as ``packed_slot``."""
    most, running = launch.micro_batch, launch.running
    if launch.pipeline == 1 or most is None or running is None or running >= launch.slots * most:
        return None
    seen = f"--max-running-requests {running} does not fill {launch.slots} slots of {most} requests"
    remedy = f"Set it to {launch.slots * most}, or --pp-max-micro-batch-size to {max(running // launch.slots, 1)}"
    return _warning(seen, Fails.NEVER, remedy, "sglang/srt/managers/scheduler.py")


# Environment.


def nccl_level(launch: Launch) -> Verdict | None:
    """Source: ``ncclGetLevel`` in NCCL's ``src/graph/paths.cc``: words exactly, or numbers of before the words."""
    level = launch.environment.get("NCCL_P2P_LEVEL", "").strip()
    if not level or level in LEVELS:
        return None
    if level[0].isascii() and level[0].isdigit():
        digits = level[: len(level) - len(level.lstrip("0123456789"))]
        word = OLD_LEVELS[min(int(digits), len(OLD_LEVELS) - 1)]
        seen = f"NCCL_P2P_LEVEL is the number {level}, which NCCL takes for {word}"
        return _warning(seen, Fails.NEVER, f"Write NCCL_P2P_LEVEL={word} if that is meant", NCCL)
    seen = f"NCCL_P2P_LEVEL is {level}, which NCCL does not know and ignores"
    return _warning(seen, Fails.NEVER, f"Use one of {', '.join(LEVELS)}", NCCL)


def nccl_p2p(launch: Launch) -> Verdict | None:
    """SGLang's own all-reduce, and FlashInfer's, go from GPU to GPU past NCCL: with one half of the workaround for
    IOMMU and ACS the hang moves on to their first use. Source: local-inference-lab/rtx6kpro#15.
    """
    off = launch.environment.get("NCCL_P2P_DISABLE", "0") not in ("", "0")
    if not off or launch.tensor == 1 or launch.switch("--disable-custom-all-reduce"):
        return None
    seen = "NCCL_P2P_DISABLE is set, and SGLang's own all-reduce still goes from GPU to GPU, where it may hang"
    remedy = "Add --disable-custom-all-reduce, as sglang_server_p2p_fallback: true does, or remove NCCL_P2P_DISABLE"
    return _warning(seen, Fails.NEVER, remedy, "local-inference-lab/rtx6kpro#15")


def nccl_graphs(launch: Launch) -> Verdict | None:
    """Buffers that NCCL registered for a graph may hang its replay. From 0.5.20 on SGLang says so for the all-to-all of
    the LM head, from 0.5.23 on for all ranks. Source: ``srt/arg_groups/parallel_hook.py``, sgl-project/sglang#38936.
    """
    decode = launch.text("--disaggregation-mode") == "decode" and launch.attention_data == launch.tensor
    own = launch.since("0.5.20") and (decode or launch.switch("--enable-tp-lm-head-all-to-all"))
    if launch.tensor == 1 or not launch.graphs or not launch.before("0.5.23") or own:
        return None
    if launch.environment.get("NCCL_GRAPH_REGISTER") == "0":
        return None
    seen = f"{launch.tensor} tensor ranks replay CUDA graphs whose buffers NCCL has registered, which may hang"
    remedy = "Set NCCL_GRAPH_REGISTER=0 in the engine's environment"
    return _warning(seen, Fails.NEVER, remedy, "sgl-project/sglang#38936")


def nccl_infiniband(launch: Launch) -> Verdict | None:
    """Right on one node without InfiniBand, wrong between nodes that have it. Source: NCCL's documentation."""
    if launch.node_count == 1 or launch.environment.get("NCCL_IB_DISABLE") != "1":
        return None
    seen = f"NCCL_IB_DISABLE=1 on {launch.node_count} nodes: what they say to each other goes over TCP"
    return _warning(seen, Fails.NEVER, "Remove it where the nodes have InfiniBand or RoCE", NCCL)


def nccl_algorithm(launch: Launch) -> Verdict | None:
    """Stages send and receive, which is no collective. Source: NCCL's documentation."""
    if "NCCL_ALGO" not in launch.environment or launch.tensor > 1 or launch.pipeline == 1:
        return None
    seen = (
        f"NCCL_ALGO={launch.environment['NCCL_ALGO']} has no effect: it is for collectives, and stages send and receive"
    )
    return _info(seen, Fails.NEVER, "Remove NCCL_ALGO", NCCL)


def max_connections(launch: Launch) -> Verdict | None:
    """Source: ``_set_envs_and_config`` in ``srt/entrypoints/engine.py`` of every release."""
    value = launch.environment.get("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    if value == "8":
        return None
    seen = f"CUDA_DEVICE_MAX_CONNECTIONS={value} has no effect: SGLang sets it to 8"
    source = "sglang/srt/entrypoints/engine.py"
    return _info(seen, Fails.NEVER, "Remove CUDA_DEVICE_MAX_CONNECTIONS", source)


RULES: tuple[Rule, ...] = (
    nodes,
    node_rank,
    rendezvous,
    node_division,
    node_layout,
    gpu_numbers,
    gpus,
    gpu_overlap,
    pipeline_excludes,
    pipeline_delay,
    pipeline_speculation,
    pipeline_model,
    patch_layer_probe,
    patch_window_pool,
    patch_abort,
    partition,
    stages,
    heads,
    expert_size,
    experts,
    expert_width,
    expert_blocks,
    all_to_all_size,
    all_to_all_runner,
    all_to_all_groups,
    all_to_all_hardware,
    two_batches,
    expert_balance,
    attention_groups,
    attention_groups_ignored,
    replicas_on_nodes,
    chunk_pages,
    micro_batch,
    dense_tensor_size,
    served_name,
    graph_padding,
    attention_hardware,
    attention_model,
    hybrid_attention,
    moe_hardware,
    fp4_runner,
    quantization,
    kv_type,
    expert_runner,
    deep_gemm,
    installed,
    other_nodes,
    load_barrier,
    graphs_disabled,
    graph_batch,
    graph_batch_small,
    prefill_graphs,
    async_depth,
    async_depth_ignored,
    async_depth_nodes,
    packed_slot,
    running_requests,
    nccl_level,
    nccl_p2p,
    nccl_graphs,
    nccl_infiniband,
    nccl_algorithm,
    max_connections,
)


def _warning(seen: str, fails: Fails, remedy: str, source: str) -> Verdict:
    return Verdict(seen, fails, remedy, source, "warning")


def _info(seen: str, fails: Fails, remedy: str, source: str) -> Verdict:
    return Verdict(seen, fails, remedy, source, "info")


def _missing_patch(launch: Launch, patch: str, what: str, source: str) -> Verdict:
    """An error where somebody looked and found the patch missing, else a warning."""
    state = "is missing" if launch.patches is not None else "is not known to be there"
    stages = f"--pp-size {launch.pipeline} with Triton in SGLang {launch.release}"
    severity: Severity = "error" if launch.patches is not None else "warning"
    seen = f"patch {patch}, which {stages} needs, {state}: {what}"
    return Verdict(seen, Fails.LOADED, f"Install the release with patch {patch}", source, severity)


def _local_gpus(launch: Launch) -> list[int]:
    """The GPU of each rank of a node, as SGLang numbers them."""
    tensor, pipeline, count = launch.tensor, launch.pipeline, launch.node_count
    base, step = launch.number("--base-gpu-id") or 0, launch.size("--gpu-id-step")
    local_stages = max(pipeline // count, 1)
    local_ranks = max(tensor // max(count // pipeline, 1), 1)
    numbers = (
        base + replica * tensor * pipeline * step + stage * local_ranks + rank * step
        for replica in range(launch.replicas)
        for stage in range(local_stages)
        for rank in range(local_ranks)
    )
    # A size may be any number; no node has as many GPUs.
    return list(itertools.islice(numbers, 1024))


def _lacks_attention(launch: Launch, phase: str, backend: str) -> Fails | None:
    """When SGLang says that a GPU has no kernel of a backend; None where it has, or nothing is known."""
    family = launch.family
    if family is None:
        return None
    if backend == "trtllm_mha":
        if phase == "decode":
            return None if family in (9, 10, 12) else Fails.CHECK
        eight = family == 12 and launch.text("--kv-cache-dtype") == "fp8_e4m3"
        fit = family == 10 or (launch.since("0.5.19") and family in (9, 12) and not eight)
        return None if fit or not launch.release else Fails.CHECK
    if backend == "trtllm_mla":
        return None if family == 10 else Fails.LATE if family == 12 else Fails.CHECK
    if backend == "cutedsl_mla":
        return None if family == 10 else Fails.CHECK
    if backend == "fa3":
        latent = launch.shape is not None and launch.shape.attention == "mla"
        return None if family == 9 or (family == 8 and not latent) else Fails.LOADED
    if family == 12 and (backend in ("flashmla", "cutlass_mla") or (backend == "fa4" and launch.before("0.5.18"))):
        return Fails.LATE
    return None


def _blocks(launch: Launch) -> int:
    """Rows of the FP8 blocks of the model's experts or MLP; 0 where it has none, or nothing is known."""
    stored = launch.shape.weight_format if launch.shape else None
    return stored.rows if stored and stored.name == "fp8" else 0


def _list(value: object) -> list[object]:
    if value is None:
        return []
    return [*value] if isinstance(value, list | tuple) else [*str(value).split()]


def _numbers(values: list[int]) -> str:
    """``2 to 7`` for consecutive numbers, else all of them."""
    if len(values) > 2 and values == list(range(values[0], values[-1] + 1)):
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values))
