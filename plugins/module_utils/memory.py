# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""GPU memory: what each stage of a layout needs, the ``--mem-fraction-static`` that leaves room for the rest, and what
to change where it does not fit.

SGLang sizes its KV pool so (``_profile_available_bytes`` in ``srt/model_executor/model_runner_kv_cache_mixin.py`` of
0.5.12.post1, ``srt/mem_cache/kv_cache_configurator.py`` of 0.5.23): with F bytes free before the weights are loaded and
A after, both the least over all ranks of all stages, the pool of each rank has ``A - F * (1 - fraction)`` bytes. Each
stage divides that by what a token takes in its layers, and the least number of tokens holds for all. What graphs,
activations, NCCL and the driver take later must find room in ``F * (1 - fraction)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding
from ansible_collections.inference.sglang.plugins.module_utils.gpus import MIB, Card
from ansible_collections.inference.sglang.plugins.module_utils.models import Layer, Shape

HERE = "plugins/module_utils/memory.py"
GIB = 1 << 30

# "Measured" below: two H200, SGLang 0.5.12.post1, 2026-11-29; the flags and all readings are in
# tests/unit/test_memory.py.

DRIVER = 640 * MIB
"""What nvidia-smi counts in memory.total and CUDA does not have: 97887 MiB against 94.97 GiB on an RTX PRO 6000
(antirez/ds4#431), 32623 MiB against 31.38 GiB on an RTX PRO 4500 (vllm-project/vllm#51590), 616 MiB measured."""

CONTEXT = 704 * MIB
"""A process's CUDA context and first kernels: 0.67 GiB measured."""

COLLECTIVES = 2 * GIB
"""What ``init_torch_distributed`` takes before weights are loaded where there is more than one rank: 1.8 to 2.0 GiB at
tensor size 8 (log in sgl-project/sglang#11716), 0.8 measured at 2."""

NEIGHBOURS = 544 * MIB
"""A communicator of two ranks, made when stages first send to each other (NVIDIA/nccl#964)."""

METADATA = 512 * MIB
"""Buffers of the attention backend: the constant in SGLang's own estimate (``srt/server_args.py``, 0.5.12.post1, line
1543), above FlashInfer's workspace of 384 MiB (``SGLANG_FLASHINFER_WORKSPACE_SIZE`` in ``srt/environ.py``)."""

GRAPH = 2 * MIB
"""A captured graph, for each request of its batch: ``srt/server_args.py`` of 0.5.12.post1, line 1550."""

GRAPH_DATA_PARALLEL = (3 * MIB, 4.5 * MIB)
"""With attention data parallelism more, for each request and each of its ranks; the second above a batch of 300: lines
1556 to 1562 there."""

PREFILL_GRAPHS = {"mla": 1536 * MIB, "gqa": 512 * MIB}
"""Captured prefill graphs: lines 1568 to 1571 there, the second for 64 sizes of 8 MiB; 0.9 GiB measured for MLA."""

PREFIX_BACKENDS = ("flashinfer", "fa3", "fa4", "flashmla", "cutlass_mla", "trtllm_mla", "tokenspeed_mla")
PREFIX_TOKENS = 131072
"""Attention backends that unpack MLA's cached prefix, up to so many tokens at once:
``CHUNKED_PREFIX_CACHE_SUPPORTED_ATTENTION_BACKENDS`` in ``srt/model_executor/model_runner.py`` and
``SGLANG_MAX_KV_CHUNK_CAPACITY`` in ``srt/environ.py``, 0.5.12.post1."""

SLACK = 2
"""Memory that activations take over what lives at once: PyTorch's allocator keeps freed blocks of other sizes, and two
batches' decode buffers live together. Measured: 1.6 for prefill, 2.0 for decoding without a graph."""

MARGIN = 3 * GIB // 2
"""For what nobody counts, such as kernels that load at first use: on SM120 a process held 1.37 GiB more than planned
(vllm-project/vllm#51590)."""

CAREFUL = 0.93
"""Largest share of a GPU's memory for weights and KV cache, unless what is promised needs more: what is left over
serves whatever nobody counted better than tokens that nobody asked for."""

MXFP4_PADDING = (256, 256)
"""The sides of an MXFP4 expert, hidden and own, are padded to multiples of at most these: ``create_weights`` in
``srt/layers/quantization/mxfp4.py``. How far depends on the runner: ``mxfp4_padding`` in ``launch_rules``."""

SPECULATION = {"NGRAM": 0, "STANDALONE": 6 * GIB}
SPECULATION_ELSE = 4 * GIB
"""What SGLang itself spares for a draft model and its graphs, by ``--speculative-algorithm``: ``srt/server_args.py`` of
0.5.12.post1, lines 1576 to 1582; from 0.5.14 on no longer."""

IMAGE_PATCHES = 1 << 16
"""Patches of the largest image: ``SGLANG_IMAGE_MAX_PIXELS`` in ``srt/environ.py`` is 16384 tokens of 28 x 28 pixels,
each token 2 x 2 patches. The encoder takes an image as a whole, and all of a request's at once
(``_get_chunked_prefill_embedding`` in ``srt/managers/mm_utils.py`` of 0.5.12.post1), so that several smaller ones are
as much. SGLang's own fraction leaves more: 0.95 of what it would be without images."""

PATCHES_PER_TOKEN = 4

SPLITS, SPLIT_TOKENS = 8, 32
"""Defaults of ``--triton-attention-num-kv-splits`` and, in ``srt/layers/attention/triton_backend.py``, of
``_MLA_DECODE_MIN_BLOCK_KV``."""

MOST_MULTIPROCESSORS = 256
"""Taken for those of a card that is not known: more than any has."""

POOL_RATIO = 0.8
"""``swa_full_tokens_ratio`` in ``srt/server_args.py``: tokens of the sliding-window pool for each of the full one."""

WORTHWHILE = 0.02
"""Share of tokens that another partition must add before it is proposed."""

MOST_STEPS = 1 << 19
"""Stages times the square of layers up to which the best partition is looked for: 64 stages of 90 layers."""

CONTEXT_STEP = 1024
LEAST_CHUNK = 2048
LEAST_GRAPH = 8
NODE_GPUS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of GPUs that one node, or several equal ones, have."""


@dataclass(frozen=True)
class Layout:
    """How a model is spread over GPUs; sizes are numbers of ranks.

    ``expert``          of the tensor ranks, how many groups share out the experts; divides ``tensor``
    ``attention_data``  groups of tensor ranks that each attend to their own requests; divides ``tensor``
    ``partition``       layers of each stage; empty for SGLang's own
    ``all_to_all``      an expert backend other than none: shared experts are then whole on every rank
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    attention_data: int = 1
    partition: tuple[int, ...] = ()
    all_to_all: bool = False

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.tensor * self.pipeline

    @property
    def attention_tensor(self) -> int:
        """Ranks that one request's attention is split over."""
        return self.tensor // self.attention_data

    def __str__(self) -> str:
        named = {"tensor": self.tensor, "pipeline": self.pipeline, "expert": self.expert}
        named["attention data"] = self.attention_data
        return ", ".join(f"{name} {size}" for name, size in named.items() if size > 1 or name == "tensor")


@dataclass(frozen=True)
class Load:
    """What is promised, and how the engine runs. ``context`` and ``chunk`` in tokens, batches in requests a rank.

    ``context``          ``--context-length``: what one request may hold
    ``held``             what each of ``concurrency`` requests may hold at the same time; 0 for ``context``
    ``chunk``            ``--chunked-prefill-size``; divided among attention data ranks as SGLang does
    ``running``          ``--max-running-requests``; 0 for ``concurrency``. Left to SGLang it can be 4096
    ``graph_batch``      largest decode batch to capture, of which SGLang captures up to ``running``; 0 without graphs
    ``decode_batch``     largest decode batch at all: ``--pp-max-micro-batch-size``; 0 for SGLang's own, an equal part
                         of ``running`` for each stage
    ``adaptive_splits``  Triton's MLA decode splits follow card and context: from 0.5.12 on
    ``speculation``      ``--speculative-algorithm``; empty without one
    ``own_draft``        whether its draft model is the model's own draft layers
    ``draft_pooled``     the draft's KV cache is counted in the pool: from 0.5.14 on
    ``images``           whether images are served, with a model that has a vision tower
    ``padding``          multiples to which both sides of an MXFP4 expert are padded
    """

    context: int
    concurrency: int
    kv_type: str = "auto"
    backend: str = "triton"
    chunk: int = 8192
    running: int = 0
    graph_batch: int = 0
    decode_batch: int = 0
    prefill_graphs: bool = False
    adaptive_splits: bool = True
    page: int = 1
    held: int = 0
    speculation: str = ""
    own_draft: bool = False
    draft_pooled: bool = False
    images: bool = False
    padding: tuple[int, int] = MXFP4_PADDING


@dataclass(frozen=True)
class Stage:
    """One pipeline stage on each of its GPUs; bytes, but for ``layers`` and ``index`` (from 0).

    ``kv``             for all that is promised
    ``token``          of KV cache for one token of the pool
    ``tables``         where each running request's tokens lie: ``req_to_token``
    ``communication``  what NCCL takes after the weights are loaded
    ``draft``          the draft model of speculative decoding, loaded after the pool was cut, and its graphs
    ``draft_token``    of its KV cache for one token of the pool, where that is no part of ``token``
    ``encoder``        the image encoder's activations, and the CUDA context of the process that prepares images
    """

    index: int
    layers: int
    weights: int
    token: float
    kv: int
    graphs: int
    activations: int
    tables: int
    communication: int
    draft: int = 0
    draft_token: float = 0.0
    encoder: int = 0

    @property
    def reserve(self) -> int:
        """What must stay free beside weights and KV cache."""
        return self.graphs + self.activations + self.other

    @property
    def other(self) -> int:
        """The part of the reserve that neither the model's graphs nor its activations take."""
        return self.tables + self.communication + self.draft + self.encoder + MARGIN

    @property
    def needed(self) -> int:
        """All that it takes."""
        return self.weights + self.kv + self.reserve


@dataclass(frozen=True)
class Alternative:
    """A change that makes it fit, in words, and what is then to be asked for."""

    change: str
    layout: Layout
    load: Load


@dataclass(frozen=True)
class Budget:
    """The answer.

    ``usable``           bytes of each GPU that are free before weights are loaded
    ``promised``         tokens that the KV cache of one attention data rank must hold
    ``fraction``         ``--mem-fraction-static``; 0 where it does not fit
    ``tokens``           what the KV cache then holds
    ``partition``        layers of each stage
    ``better_partition`` one that holds noticeably more, for ``SGLANG_PP_LAYER_PARTITION``; empty where there is none
    """

    stages: tuple[Stage, ...]
    usable: int
    promised: int
    fraction: float = 0.0
    tokens: int = 0
    partition: tuple[int, ...] = ()
    better_partition: tuple[int, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def fullest(self) -> Stage:
        """The stage that needs most."""
        return max(self.stages, key=lambda stage: stage.needed)

    @property
    def fits(self) -> bool:
        """Whether there is a fraction that serves what is promised."""
        return self.fraction > 0

    @property
    def missing(self) -> int:
        """Bytes that each GPU would need beyond ``usable``; 0 or less where there are enough.

        The pool is as large on the heaviest stage as on the one whose tokens are widest.
        """
        pool = max(stage.weights for stage in self.stages) + max(stage.kv for stage in self.stages)
        return max(self.fullest.needed, pool) - self.usable

    def tokens_at(self, fraction: float, page: int = 1) -> int:
        """Tokens that SGLang's KV cache holds at this fraction; below 0 where the weights alone exceed it."""
        pool = self.usable * fraction - max(stage.weights for stage in self.stages)
        return min(math.floor(pool / stage.token) for stage in self.stages) // page * page


def default_partition(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage as SGLang deals them: the last ones get the remainder.

    ``get_pp_indices`` in ``srt/distributed/utils.py``, the same from 0.5.10 to 0.5.23.
    """
    least, more = divmod(layers, stages)
    return (least,) * (stages - more) + (least + 1,) * more


def best_partition(shape: Shape, layout: Layout, load: Load) -> tuple[int, ...]:
    """The partition whose fullest stage has least weights and promised KV cache; among equals the most even one.

    SGLang's own where a model has so many layers that the search would take long.
    """
    if layout.pipeline * len(shape.layers) ** 2 > MOST_STEPS:
        return default_partition(len(shape.layers), layout.pipeline)
    tokens = _promised(layout, load)
    costs = [
        _layer_bytes(shape, layout, layer, padding=load.padding) + tokens * _token(shape, layout, load, (layer,))
        for layer in shape.layers
    ]
    first, last = _ends(shape, layout)
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    count, stages = len(costs), layout.pipeline
    mean = (sums[-1] + first + last) / stages

    def weight(stage: int, start: int, end: int) -> int:
        cost = sums[end] - sums[start] + first * (stage == 0) + last * (stage == stages - 1)
        # A high power makes the fullest stage count most, and yet tells even partitions from uneven ones.
        return round(1000 * cost / mean) ** 64

    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for stage in range(stages):
        best = {
            end: min(
                (total + weight(stage, start, end), (*parts, end - start))
                for start, (total, parts) in best.items()
                if start < end
            )
            for end in range(stage + 1, count - (stages - stage - 1) + 1)
        }
    return best[count][1]


def sound(layout: Layout, layers: int) -> bool:
    """Whether the sizes go together, for a model of so many layers.

    What is wrong with them otherwise is said by the rules ``partition``, ``stages``, ``expert_size`` and
    ``attention_groups`` of ``launch_rules``.
    """
    if layout.tensor % layout.expert or layout.tensor % layout.attention_data or layout.pipeline > layers:
        return False
    parts = layout.partition or default_partition(layers, layout.pipeline)
    return len(parts) == layout.pipeline and sum(parts) == layers and min(parts) > 0


def rank_bytes(
    shape: Shape, layout: Layout, batch: int = 0, padding: tuple[int, int] = MXFP4_PADDING
) -> tuple[int, ...]:
    """Bytes of weights of each stage on each of its ranks.

    With ``batch``, what one decode step of so many tokens reads there: the experts that they are expected to reach, and
    neither embedding nor vision tower.
    """
    found = []
    for index, layers in enumerate(_stages(shape, layout)):
        first, last = _ends(shape, layout)
        total = sum(
            # Most layers are the same object.
            count * _layer_bytes(shape, layout, layer, batch, padding)
            for layer, count in _counted(layers)
        )
        total += last if index == layout.pipeline - 1 else 0
        if not batch:
            total += shape.vision.bytes + (first if index == 0 else 0)
            if shape.tied and layout.pipeline == 1:
                total -= last
        found.append(total)
    return tuple(found)


def usable_bytes(card: Card, layout: Layout) -> int:
    """Bytes of a GPU that are free before weights are loaded; SGLang logs them as "Load weight begin. avail mem"."""
    return card.memory - DRIVER - CONTEXT - (COLLECTIVES if layout.gpus > 1 else 0)


def decode_splits(shape: Shape, load: Load, multiprocessors: int) -> int:
    """Parts in which Triton's decode attention computes one request: ``_mla_decode_kv_splits_cap``.

    0 ``multiprocessors`` are as many as a card may have.
    """
    if shape.attention != "mla" or not load.adaptive_splits:
        return SPLITS
    parts = -(-load.context // SPLIT_TOKENS)
    return max(SPLITS, min(_power_of_two(multiprocessors or MOST_MULTIPROCESSORS), _power_of_two(parts)))


def decode_buffer(shape: Shape, layout: Layout, load: Load, multiprocessors: int, batch: int) -> int:
    """Bytes of the partial results of Triton's decode attention for ``batch`` requests: ``init_cuda_graph_state``.

    64 heads of MLA with 256 splits and a batch of 256 take 8 GiB, with a batch of 8 a quarter of one.
    """
    if load.backend != "triton":
        return 0
    width = shape.kv_rank or shape.v_head_dim
    heads = -(-shape.heads // layout.attention_tensor)
    # One more value for the logarithm of the sum of exponentials.
    return batch * heads * decode_splits(shape, load, multiprocessors) * (width + 1) * 4


def plan(shape: Shape, layout: Layout, card: Card, load: Load) -> Budget:
    """The fraction that serves what is promised, or a finding that names the fullest stage, what is missing there and
    what would fit. A layout that is not ``sound`` has no stages. Raises ModelError for a KV cache type whose size is
    not known.
    """
    if not sound(layout, len(shape.layers)):
        return Budget((), usable_bytes(card, layout), _promised(layout, load))
    budget = _budget(shape, layout, card, load)
    findings = []
    better = budget
    if layout.pipeline > 1 and not layout.partition:
        better = _budget(shape, replace(layout, partition=best_partition(shape, layout, load)), card, load)
    if budget.fits:
        if better.tokens < budget.tokens * (1 + WORTHWHILE):
            return budget
        named = ",".join(map(str, better.partition))
        seen = f"stages of {','.join(map(str, budget.partition))} layers hold {budget.tokens} tokens, {named} would "
        remedy = f"Set SGLANG_PP_LAYER_PARTITION={named}"
        findings.append(Finding("memory.uneven", "info", f"{seen}hold {better.tokens}", remedy, HERE))
        return replace(budget, better_partition=better.partition, findings=tuple(findings))
    alternatives = tuple(_alternatives(shape, layout, card, load))
    changes = "; ".join(alternative.change for alternative in alternatives)
    remedy = f"Take one of these, each of which fits: {changes}" if changes else "Serve a smaller model on these GPUs"
    fullest = budget.fullest
    seen = (
        f"stage PP{fullest.index} ({fullest.layers} layers) needs {_gib(fullest.needed)} of {_gib(budget.usable)} on "
        f"each GPU: weights {_gib(fullest.weights)}, KV cache for {budget.promised} tokens "
        f"{_gib(fullest.kv)}, graphs {_gib(fullest.graphs)}, activations {_gib(fullest.activations)}, other "
        f"{_gib(fullest.other)}{_of_other(fullest)}; {_gib(budget.missing)} are missing"
    )
    if fullest.needed - budget.usable < budget.missing:
        seen += ", as the heaviest stage must spare as many bytes for the KV cache as the one with most layers"
    return replace(
        budget,
        better_partition=better.partition if better.fits else (),
        alternatives=alternatives,
        findings=(Finding("memory.does_not_fit", "error", seen, remedy, HERE),),
    )


def fraction_findings(budget: Budget, fraction: float, load: Load) -> list[Finding]:
    """What is wrong with a ``--mem-fraction-static`` that someone chose.

    Weights above it: SGLang ends with "Not enough memory. Please try to increase --mem-fraction-static". Too little
    beside it: CUDA out of memory while graphs are captured or at the first long prompt.
    """
    if not budget.stages:
        return []
    heaviest = max(budget.stages, key=lambda stage: stage.weights)
    allowed = budget.usable * fraction
    flag = f"--mem-fraction-static {fraction:g}"
    source = "sgl-project/sglang#4330"
    if heaviest.weights >= allowed:
        seen = (
            f"stage PP{heaviest.index} has {_gib(heaviest.weights)} of weights on each GPU, {flag} allows "
            f"{_gib(allowed)} of {_gib(budget.usable)} for them and the KV cache"
        )
        least = math.ceil(heaviest.weights / budget.usable * 1000) / 1000
        remedy = f"Set {budget.fraction:g}" if budget.fits else f"Set more than {least:g}, or spread the model further"
        return [Finding("memory.fraction_too_small", "error", seen, remedy, source)]
    findings = []
    tokens = budget.tokens_at(fraction, load.page)
    if tokens < budget.promised:
        short = tokens < load.context
        promise = f"one request of {load.context}" if short else f"{budget.promised} for {load.concurrency} requests"
        seen = f"{flag} leaves a KV cache of {tokens} tokens, fewer than {promise}"
        remedy = f"Set {budget.fraction:g}" if budget.fits else "Promise less, or spread the model further"
        findings.append(Finding("memory.few_tokens", "error" if short else "warning", seen, remedy, HERE))
    left, stage = min(
        (
            (budget.usable - stage.weights - tokens * (stage.token + stage.draft_token) - stage.reserve, stage)
            for stage in budget.stages
        ),
        key=lambda pair: pair[0],
    )
    if left < 0:
        seen = (
            f"{flag} leaves {_gib(left + stage.reserve)} on stage PP{stage.index} for graphs "
            f"({_gib(stage.graphs)}), activations ({_gib(stage.activations)}) and the rest "
            f"({_gib(stage.other)}{_of_other(stage)})"
        )
        lower = f"Set {budget.fraction:g}" if budget.fits else "Lower it"
        remedy = f"{lower}, or capture graphs for smaller batches; turning graphs off is the last resort"
        findings.append(Finding("memory.fraction_too_large", "warning", seen, remedy, source))
    return findings


def _budget(shape: Shape, layout: Layout, card: Card, load: Load) -> Budget:
    usable, promised = usable_bytes(card, layout), _promised(layout, load)
    parts = _stages(shape, layout)
    graphs = _graphs(shape, layout, card, load)
    activations = METADATA + SLACK * _activations(shape, layout, card, load)
    drafts = shape.draft_layers if load.own_draft else ()
    draft_token = _token(shape, layout, load, drafts)
    draft, encoder = _draft(shape, layout, load, graphs), _encoder(shape, load)
    stages = []
    for index, (layers, weights) in enumerate(zip(parts, rank_bytes(shape, layout, 0, load.padding), strict=True)):
        token = _token(shape, layout, load, layers) + (draft_token if load.draft_pooled else 0)
        beside = 0.0 if load.draft_pooled else draft_token
        stages.append(
            Stage(
                index=index,
                layers=len(layers),
                weights=weights,
                token=token,
                kv=math.ceil((token + beside) * promised),
                graphs=graphs,
                activations=activations,
                tables=_running(layout, load) * load.context * 4,
                communication=NEIGHBOURS if layout.pipeline > 1 else 0,
                draft=draft,
                draft_token=beside,
                # Images are encoded where their tokens are embedded: general_mm_embed_routine in mm_utils.py.
                encoder=encoder if index == 0 else 0,
            )
        )
    budget = Budget(tuple(stages), usable, promised, partition=tuple(stage.layers for stage in stages))
    heaviest, widest = max(stage.weights for stage in stages), max(stage.token for stage in stages)
    if budget.missing > 0:
        return budget
    # The pool that leaves each stage its reserve; it is cut for the widest stage, others fill a part of theirs.
    pool = min(
        (usable - stage.weights - stage.reserve) * widest / (stage.token + stage.draft_token) for stage in stages
    )
    most = math.floor((heaviest + pool) / usable * 1000) / 1000
    least = math.ceil((heaviest + widest * promised) / usable * 1000) / 1000
    fraction = min(max(min(most, CAREFUL), least), 0.999)
    return replace(budget, fraction=fraction, tokens=budget.tokens_at(fraction, load.page))


def _alternatives(shape: Shape, layout: Layout, card: Card, load: Load) -> Iterator[Alternative]:
    """Changes that make it fit, those first that take least from what was promised."""

    def fits(layout: Layout, load: Load) -> bool:
        return sound(layout, len(shape.layers)) and _budget(shape, layout, card, load).fits

    if layout.pipeline > 1:
        even = replace(layout, partition=best_partition(shape, layout, load))
        if fits(even, load):
            yield Alternative(f"SGLANG_PP_LAYER_PARTITION={','.join(map(str, even.partition))}", even, load)
    for batch in _halves(load.graph_batch, LEAST_GRAPH):
        smaller = replace(load, graph_batch=batch)
        if fits(layout, smaller):
            yield Alternative(f"sglang_server_cuda_graph_max_batch_size {batch}", layout, smaller)
            break
    for chunk in _halves(load.chunk, LEAST_CHUNK):
        smaller = replace(load, chunk=chunk)
        if fits(layout, smaller):
            yield Alternative(f"sglang_server_chunked_prefill_size {chunk}", layout, smaller)
            break
    narrow = replace(load, kv_type="fp8_e4m3")
    if shape.kv_bytes(load.kv_type) > shape.kv_bytes(narrow.kv_type) and fits(layout, narrow):
        yield Alternative("sglang_server_kv_cache_type fp8_e4m3", layout, narrow)
    fewer = _most(load.concurrency - 1, lambda count: fits(layout, _serving(load, count)))
    if fewer:
        less = _serving(load, fewer)
        running = f" and sglang_server_max_running_requests {less.running}" if less.running else ""
        yield Alternative(f"sglang_server_concurrency {fewer}{running}", layout, less)
    held = _most((load.held - 1) // CONTEXT_STEP, lambda count: fits(layout, _holding(load, count * CONTEXT_STEP)))
    if held:
        less = _holding(load, held * CONTEXT_STEP)
        yield Alternative(f"sglang_server_tokens_per_request {less.held}", layout, less)
    longest = min(load.context - 1, shape.context or load.context)
    steps = _most(longest // CONTEXT_STEP, lambda count: fits(layout, _within(load, count * CONTEXT_STEP)))
    if steps:
        shorter = _within(load, steps * CONTEXT_STEP)
        yield Alternative(f"sglang_server_context_length {shorter.context}", layout, shorter)
    for gpus in (layout.gpus, *(count for count in NODE_GPUS if count > layout.gpus)):
        candidates = [other for other in layouts(shape, gpus, layout) if other != layout and fits(other, load)]
        if candidates:
            best = max(candidates, key=lambda other: _budget(shape, other, card, load).tokens)
            yield Alternative(f"{_settings(best)} on {gpus} GPUs", best, load)
        if candidates and gpus > layout.gpus:
            break


def _settings(layout: Layout) -> str:
    sizes = {"tensor": layout.tensor, "pipeline": layout.pipeline, "expert": layout.expert}
    sizes["attention_data"] = layout.attention_data
    said = [f"sglang_server_{name}_parallel {size}" for name, size in sizes.items() if size > 1 or name == "tensor"]
    return " and ".join(said)


def layouts(shape: Shape, gpus: int, like: Layout) -> list[Layout]:
    """All splits of ``gpus`` into tensor and pipeline ranks that the model's dimensions allow.

    Experts and attention data ranks are spread over all tensor ranks where ``like`` spreads them at all.
    """
    block = shape.weight_format.rows or 1
    found = []
    for tensor in range(1, gpus + 1):
        expert = tensor if like.expert > 1 else 1
        data = tensor if like.attention_data > 1 else 1
        divides = (
            gpus % tensor == 0
            and gpus // tensor <= len(shape.layers)
            and shape.heads % (tensor // data) == 0
            and (shape.kv_heads % (tensor // data) == 0 or tensor // data % shape.kv_heads == 0)
            and shape.width % tensor == 0
            and shape.experts % expert == 0
            and shape.expert_width % (tensor // expert) == 0
            # check_quantized_moe_compatibility in srt/model_executor/model_runner.py of 0.5.12.post1.
            and (shape.weight_format.name != "fp8" or shape.expert_width // (tensor // expert) % block == 0)
        )
        if divides:
            other = replace(like, tensor=tensor, pipeline=gpus // tensor, expert=expert, attention_data=data)
            found.append(replace(other, partition=()))
    return found


def _stages(shape: Shape, layout: Layout) -> list[tuple[Layer, ...]]:
    found, start = [], 0
    for count in layout.partition or default_partition(len(shape.layers), layout.pipeline):
        found.append(shape.layers[start : start + count])
        start += count
    return found


def _ends(shape: Shape, layout: Layout) -> tuple[int, int]:
    """Bytes of the embedding on a rank of the first stage, and of the head on one of the last."""
    # VocabParallelEmbedding(use_attn_tp_group=is_dp_attention_enabled()) and ParallelLMHead in srt/models.
    first = _share(shape.embedding.bytes, layout.attention_tensor)
    return first, _share((shape.embedding if shape.tied else shape.head).bytes, layout.tensor)


def _counted(layers: Iterable[Layer]) -> Iterator[tuple[Layer, int]]:
    """Each layer, and how many of these are the same object."""
    counts: dict[int, tuple[Layer, int]] = {}
    for layer in layers:
        counts[id(layer)] = layer, counts.get(id(layer), (layer, 0))[1] + 1
    yield from counts.values()


def _layer_bytes(
    shape: Shape, layout: Layout, layer: Layer, batch: int = 0, padding: tuple[int, int] = MXFP4_PADDING
) -> int:
    """Bytes of a layer on one rank; with ``batch``, those that a decode step reads."""
    attention = layout.attention_tensor
    expert = -(-shape.experts // layout.expert) / max(shape.experts, 1) / (layout.tensor // layout.expert)
    routed = layer.routed.bytes * expert
    if batch:
        routed *= shape.distinct_experts(batch) / max(shape.experts, 1)
    elif shape.weight_format.name == "mxfp4":
        width = shape.expert_width // (layout.tensor // layout.expert)
        routed *= _padded(shape.hidden, padding[0]) * _padded(width, padding[1])
    return (
        _share(layer.attention.bytes, attention)
        + _share(layer.key_value.bytes, min(attention, shape.kv_heads))
        + layer.replicated.bytes
        + (0 if batch else _share(layer.absorbed.bytes, attention))
        + _share(layer.dense.bytes, layout.tensor)
        + _share(layer.shared.bytes, 1 if layout.all_to_all else layout.tensor)
        + math.ceil(routed)
    )


def _padded(side: int, multiple: int) -> float:
    return -(-side // multiple) * multiple / side


def spared(algorithm: str) -> int:
    """Bytes that SGLang itself leaves for a draft model and its graphs."""
    return SPECULATION.get(algorithm, SPECULATION_ELSE) if algorithm else 0


def _draft(shape: Shape, layout: Layout, load: Load, graphs: int) -> int:
    """Bytes of a draft model and of its graphs on each rank: what SGLang spares, or more where more is known.

    The draft's own copies of embedding and head live until the model's are put in their place: ``set_embed_and_head``
    in ``srt/models/deepseek_v2.py``.
    """
    least = spared(load.speculation)
    if not load.own_draft or not shape.draft_layers:
        return least
    layers = sum(_layer_bytes(shape, layout, layer, padding=load.padding) for layer in shape.draft_layers)
    besides = len(shape.draft_layers) * (sum(_ends(shape, layout)) + shape.joined.bytes)
    return max(least, layers + besides + graphs)


def _encoder(shape: Shape, load: Load) -> int:
    """Bytes that encoding images takes on a rank of the first stage, the tower whole on each.

    Without ``SLACK``: no prompt is computed meanwhile, and what the allocator keeps of one serves the other in part.
    """
    if not load.images or not shape.vision.bytes:
        return 0
    patches = max(IMAGE_PATCHES, PATCHES_PER_TOKEN * load.chunk)
    return CONTEXT + shape.patch_bytes * patches


def _of_other(stage: Stage) -> str:
    """What of ``other`` not every model has."""
    parts = {"draft model": stage.draft, "image encoder": stage.encoder}
    named = " and ".join(f"{_gib(size)} for the {name}" for name, size in parts.items() if size)
    return f", of it {named}" if named else ""


def _token(shape: Shape, layout: Layout, load: Load, layers: Iterable[Layer]) -> float:
    """Bytes that a token of the pool takes in these layers on one rank: ``pool_configurator.py``."""
    wide = shape.kv_bytes(load.kv_type, layout.attention_tensor)
    return sum(wide * (POOL_RATIO if shape.split_pool and layer.window else 1) for layer in layers)


def _promised(layout: Layout, load: Load) -> int:
    """Tokens: what the requests of one attention data rank hold, and at least one request of the whole context."""
    requests = -(-load.concurrency // layout.attention_data)
    pages = max(requests * -(-(load.held or load.context) // load.page), -(-load.context // load.page))
    return pages * load.page


def _serving(load: Load, requests: int) -> Load:
    """With fewer requests, and all that follows from their number."""

    def share(count: int) -> int:
        return -(-count * requests // load.concurrency)

    return replace(
        load,
        concurrency=requests,
        running=share(load.running),
        decode_batch=share(load.decode_batch),
        graph_batch=share(load.graph_batch),
    )


def _holding(load: Load, tokens: int) -> Load:
    return replace(load, held=tokens)


def _within(load: Load, tokens: int) -> Load:
    return replace(load, context=tokens, held=min(load.held, tokens))


def _running(layout: Layout, load: Load) -> int:
    return -(-(load.running or load.concurrency) // layout.attention_data)


def _graphs(shape: Shape, layout: Layout, card: Card, load: Load) -> int:
    total = PREFILL_GRAPHS[shape.attention] if load.prefill_graphs else 0
    # capture_bs is cut to req_to_token_pool.size: srt/model_executor/cuda_graph_runner.py of 0.5.12.post1.
    batch = min(load.graph_batch, _running(layout, load))
    if not batch:
        return total
    total += batch * GRAPH + decode_buffer(shape, layout, load, card.multiprocessors, batch)
    if load.backend == "triton":
        # cuda_graph_kv_indices of 8 bytes and cuda_graph_custom_mask of one: init_cuda_graph_state.
        total += batch * load.context * 9
    if layout.attention_data > 1:
        total += round(batch * layout.attention_data * GRAPH_DATA_PARALLEL[batch > 300])
    return total


def _activations(shape: Shape, layout: Layout, card: Card, load: Load) -> int:
    """Bytes that live at once in the widest layer of a prefill chunk, and in a decode step without a graph.

    Both count: what the allocator keeps of one does not serve the other (measured).
    """
    heads = -(-shape.heads // layout.attention_tensor)
    tokens = load.chunk // layout.attention_data
    if shape.attention == "mla":
        # Queries, queries and results in latent form, results.
        attention = heads * (shape.head_dim + 2 * shape.kv_rank + shape.rope_dim + shape.v_head_dim)
    else:
        attention = 2 * (heads + -(-shape.kv_heads // layout.attention_tensor)) * shape.head_dim
    width = shape.expert_width // (layout.tensor // layout.expert)
    # Two caches for each expert of a token: fused_marlin_moe.py and fused_moe.py in srt/layers/moe/fused_moe_triton.
    experts = shape.experts_per_token * (width + max(2 * width, shape.hidden))
    dense = 3 * -(-max(shape.width, shape.shared_width) // layout.tensor)
    prefill = 2 * (max(tokens * attention, load.chunk * max(experts, dense)) + 4 * load.chunk * shape.hidden)
    if shape.attention == "mla" and load.backend in PREFIX_BACKENDS:
        unpacked = heads * (2 * (shape.head_dim - shape.rope_dim) + shape.rope_dim + 2 * shape.v_head_dim)
        prefill += 2 * unpacked * min(_promised(layout, load), PREFIX_TOKENS)
    batch = load.decode_batch or max(_running(layout, load) // layout.pipeline, 1)
    batch = batch if batch > load.graph_batch else 0
    return prefill + decode_buffer(shape, layout, load, card.multiprocessors, batch)


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number from 1 to ``limit`` that fits, if all below it do; 0 where none does."""
    low, high = 0, max(limit, 0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _halves(start: int, least: int) -> Iterator[int]:
    while start // 2 >= least:
        start //= 2
        yield start


def _share(size: int, ranks: int) -> int:
    return -(-size // ranks)


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"
