# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How fast a layout decodes, so that layouts can be ranked: a roofline of memory, links, kernels and host.

A step of one pipeline stage takes as long as its ranks need to read weights and KV cache, to compute, to start its
kernels and to exchange results, and beside that the scheduler on the host. The stages' steps make the time of a token.
The constants are measured, none of them for one model or layout; tests/unit/test_estimates.py holds what they come
from against what they give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, as_text
from ansible_collections.inference.sglang.plugins.module_utils.gpus import Card
from ansible_collections.inference.sglang.plugins.module_utils.memory import Layout, default_partition, rank_bytes
from ansible_collections.inference.sglang.plugins.module_utils.models import Shape

HERE = "plugins/module_utils/estimates.py"

# "Published" below: decode of Kimi K2.6 in INT4 on eight RTX PRO 6000 at tensor size 8, vLLM
# (local-inference-lab/rtx6kpro, 2026-05-15). "Measured": docs/measurements.md, two H200.

MEMORY_EFFICIENCY = 0.9
"""Share of the memory's bandwidth that decode kernels get. Fits the published rows from a concurrency of 16 on, which
memory bounds; aiconfigurator 0.12.0 takes 0.8 of a bandwidth that it states an eighth higher."""

COMPUTE_EFFICIENCY = 0.6
"""Share of the dense bf16 rate that matrix products get. Not measured here; it counts for long prompts only."""

LAYER = 80e-6
"""Seconds that a layer takes whatever its size: about 25 small kernels of a graph. Fits the published rows up to a
concurrency of 8."""

LATENCY = {"pcie": (0.0, 3.2e-6), "nvlink": (2.0e-6, 0.2e-6)}
"""Seconds of a small all-reduce: a constant, and one for each rank. SGLang 0.5.14's own kernel within a graph takes
4.5, 12.6 and 24.8 us for 2, 4 and 8 RTX PRO 6000, and 2.3, 2.5 and 3.0 us for as many H200
(``custom_allreduce_perf.parquet`` in aiconfigurator 0.12.0)."""

LINK_EFFICIENCY = 0.5
"""Share of a link's bandwidth that all-reduces get: 0.2 to 0.3 (PCIe) and 0.35 to 0.5 (NVLink) of the same tables'
largest messages. Fits the published rows from a concurrency of 64 on, which 0.2 would miss by a third."""

LAUNCH = 2.75e-3
"""Seconds that the host takes to start the kernels of a layer one by one: measured without CUDA graphs. That was a slow
host: a service of Kimi K2.6 over eight stages that gives 24.7 tokens a second without graphs needs less than 0.7 ms."""

HOST = 3.4e-3
"""Seconds of the scheduler for each step of a stage: measured with CUDA graphs, on the same slow host."""

HOST_REQUEST = 46e-6
"""And for each request of the step: measured."""

EXPOSED = 0.3
"""Of host and GPUs, the share of the shorter one's time that the longer one's does not hide where several slots are
busy at an async depth of 0: measured."""

CHUNK = 8192
"""Prompt tokens that are computed in one pass: ``--chunked-prefill-size`` of cards with less than 160 GB."""

ROOFLINE = "roofline"


class EstimateError(ValueError):
    """What the estimate needs is not known; ``findings`` say what."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__(as_text(findings))
        self.findings = findings


@dataclass(frozen=True)
class Work:
    """What is asked of an instance, and how it runs.

    ``concurrency``     requests at a time, each of ``input_tokens`` and ``output_tokens``
    ``depth``           ``--pp-async-batch-depth``
    ``micro_batch``     ``--pp-max-micro-batch-size``: requests that arrive together fill one slot up to it before the
                        next; 0 for the number that spreads them over all slots
    ``graphs``          decode steps are CUDA graphs; ``prefill_graphs``: prompts too
    ``kv_type``         ``--kv-cache-dtype``
    """

    concurrency: int
    input_tokens: int = 128
    output_tokens: int = 128
    depth: int = 0
    micro_batch: int = 0
    graphs: bool = True
    prefill_graphs: bool = False
    kv_type: str = "auto"

    def slots(self, layout: Layout) -> int:
        """Micro-batches that the pipeline can hold: ``pp_loop_size`` of SGLang's scheduler; 1 without a pipeline."""
        return layout.pipeline + self.depth if layout.pipeline > 1 else 1

    def busy_slots(self, layout: Layout) -> int:
        """Slots that hold a request."""
        return min(self.slots(layout), math.ceil(self.concurrency / (self.micro_batch or 1)))

    def running(self, layout: Layout) -> int:
        """Requests that decode at a time; those beyond wait for a slot."""
        if layout.pipeline == 1 or not self.micro_batch:
            return self.concurrency
        return min(self.concurrency, self.slots(layout) * self.micro_batch)

    def batch(self, layout: Layout) -> float:
        """Requests of a slot: of the fullest one, or on average where they are spread."""
        if layout.pipeline > 1 and self.micro_batch:
            return min(self.concurrency, self.micro_batch)
        return self.concurrency / self.busy_slots(layout)


@dataclass(frozen=True)
class Estimate:
    """What to expect; times in seconds.

    ``time_per_token``       of one request while it decodes
    ``tokens_per_second``    of output, of all requests together, with the time that their prompts take
    ``per_request``          tokens a second that one request gets while it decodes
    ``time_to_first_token``  rough, of a prompt that finds no other one waiting
    ``source``               who says so: ``roofline`` or a program and its version
    ``read``                 bytes that a token's step reads on one rank of each stage; 0 where the source does not say
    ``read_time``, ``link_time``, ``overhead``  the parts of ``time_per_token``: memory or, where that takes longer,
                             computing; links; kernels and host. The rest is waiting for other slots
    """

    time_per_token: float
    tokens_per_second: float
    per_request: float
    time_to_first_token: float
    source: str
    read: int = 0
    read_time: float = 0.0
    link_time: float = 0.0
    overhead: float = 0.0


@dataclass(frozen=True)
class _Step:
    """A step of one stage: bytes on one rank, seconds."""

    read: float
    read_time: float
    link_time: float
    kernels: float

    @property
    def gpu(self) -> float:
        return self.read_time + self.link_time + self.kernels

    def between(self, other: _Step, part: float) -> _Step:
        """A step this far on the way to another one."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return _Step(*(mine + (its - mine) * part for mine, its in pairs))


def roofline(shape: Shape, layout: Layout, card: Card, work: Work) -> Estimate:
    """The estimate of this room. Raises EstimateError where a number of the card that counts is 0, and ModelError."""
    _check(layout, card, work)
    engine = _Engine(shape, layout, card, work)
    batch, running = work.batch(layout), work.running(layout)
    steps = engine.decode(batch)
    hosts = [HOST + HOST_REQUEST * batch + (0.0 if work.graphs else layers * LAUNCH) for layers in engine.stages]
    time = token_time([step.gpu for step in steps], hosts, layout, work)
    first = engine.prefill(work.input_tokens)
    # The prompts that come while the first one is computed follow together.
    prompts = first + (engine.prefill(work.input_tokens * (running - 1)) if running > 1 else 0.0)
    read_time, link_time = sum(step.read_time for step in steps), sum(step.link_time for step in steps)
    return Estimate(
        time_per_token=time,
        tokens_per_second=running * work.output_tokens / (prompts + work.output_tokens * time),
        per_request=1 / time,
        time_to_first_token=first,
        source=ROOFLINE,
        read=round(sum(step.read for step in steps)),
        read_time=read_time,
        link_time=link_time,
        overhead=sum(map(max, (step.gpu for step in steps), hosts)) - read_time - link_time,
    )


def token_time(steps: Sequence[float], hosts: Sequence[float], layout: Layout, work: Work) -> float:
    """Seconds from a request's token to its next one, by what a step takes on each stage's GPUs and on its host.

    Without a pipeline the scheduler works while the GPUs do. With one, a token passes all stages, and each stage serves
    all busy slots in turn. At an async depth of 0 the host's work is hidden in part only; above, it is hidden, but
    slots that stay empty are waited for as if they were not. So runs the loop of 0.5.12.post1 and 0.5.23
    (``event_loop_pp`` in ``srt/managers/scheduler_pp_mixin.py``) with delays for stages.
    """
    stages = list(zip(steps, hosts, strict=True))
    through = sum(map(max, stages))
    busy = work.busy_slots(layout)
    if busy == 1:
        return through
    if work.depth == 0:
        return max(through, busy * max(max(pair) + EXPOSED * min(pair) for pair in stages))
    full = max(busy, len(stages))
    waited = full + (work.slots(layout) - full) * min((busy - 1) / (len(stages) - 1), 1)
    return max(through, waited * max(map(max, stages)))


def _check(layout: Layout, card: Card, work: Work) -> None:
    needed = {"bandwidth": card.bandwidth, "flops": card.flops}
    if layout.gpus > 1:
        needed["link_bandwidth"] = card.link_bandwidth
    if missing := [name for name, value in needed.items() if not value]:
        seen = f"{card.name or 'the GPU'} has no known {', no known '.join(missing)}"
        raise EstimateError(
            Finding("estimate.card", "warning", seen, "Name a GPU model of which these numbers are known", HERE)
        )
    if min(work.concurrency, work.input_tokens, work.output_tokens) < 1:
        raise EstimateError(
            Finding(
                "estimate.work", "error", f"{work} asks for nothing", "Ask for 1 request and 1 token at least", HERE
            )
        )


@dataclass(frozen=True)
class _Engine:
    shape: Shape
    layout: Layout
    card: Card
    work: Work

    @property
    def stages(self) -> tuple[int, ...]:
        """Layers of each stage."""
        return self.layout.partition or default_partition(len(self.shape.layers), self.layout.pipeline)

    def decode(self, batch: float) -> list[_Step]:
        """A decode step of each stage; a batch that is not whole stands for slots of the two next sizes."""
        low = math.floor(batch)
        steps = self._decode(low)
        if batch > low:
            steps = [less.between(more, batch - low) for less, more in zip(steps, self._decode(low + 1), strict=True)]
        return steps

    def prefill(self, tokens: int) -> float:
        """Seconds until so many prompt tokens have passed all stages, CHUNK at a time."""
        passes = math.ceil(tokens / CHUNK)
        each = math.ceil(tokens / passes)
        times = [step.gpu for step in self._steps(each, 0.0, 1)]
        if not self.work.prefill_graphs:
            times = [max(time, HOST + layers * LAUNCH) for time, layers in zip(times, self.stages, strict=True)]
        return sum(times) + (passes - 1) * max(times)

    def _decode(self, batch: int) -> list[_Step]:
        mean = self.work.input_tokens + self.work.output_tokens // 2
        cached = self.shape.cached_bytes(mean, self.work.kv_type, self.layout.attention_tensor)
        return self._steps(batch, cached * batch / self.layout.attention_data, batch)

    def _steps(self, tokens: int, cached: float, outputs: int) -> list[_Step]:
        """Steps of so many tokens that read ``cached`` bytes over all layers and end in so many rows of logits."""
        weights = rank_bytes(self.shape, self.layout, tokens)
        found = []
        for stage, layers in enumerate(self.stages):
            share = layers / len(self.shape.layers)
            read = weights[stage] + share * (self._imbalance(tokens) + cached)
            compute = 2 * self.shape.active_parameters * share * tokens / self.layout.tensor
            found.append(
                _Step(
                    read,
                    max(
                        read / (self.card.bandwidth * MEMORY_EFFICIENCY),
                        compute / (self.card.flops * COMPUTE_EFFICIENCY),
                    ),
                    layers * self._exchange(tokens) + self._hand_on(stage, tokens, outputs),
                    layers * LAYER,
                )
            )
        return found

    def _imbalance(self, tokens: int) -> float:
        """Bytes, over all layers, that the rank with most of the chosen experts reads beyond the mean.

        The largest of n normal variables lies sqrt(2 ln n) deviations above their mean, and a group's share of the
        experts that a batch reaches is hypergeometric.
        """
        groups, experts = self.layout.expert, self.shape.experts
        if groups == 1 or not experts:
            return 0.0
        reached = self.shape.distinct_experts(tokens)
        mean = reached / groups
        deviation = math.sqrt(mean * (1 - 1 / groups) * (experts - reached) / max(experts - 1, 1))
        most = min(mean + math.sqrt(2 * math.log(groups)) * deviation, experts / groups, reached)
        routed = sum(layer.routed.bytes for layer in self.shape.layers)
        return (most - mean) * routed / experts / (self.layout.tensor // groups)

    def _exchange(self, tokens: int) -> float:
        """Seconds of a layer's exchanges: an all-reduce after attention and one after the experts.

        With attention data ranks, tokens are gathered before the experts and scattered after them instead of the
        latter: the same bytes, in two turns.
        """
        layout, size = self.layout, 2 * self.shape.hidden * tokens
        time = self._all_reduce(layout.attention_tensor, size / layout.attention_data)
        time += self._all_reduce(layout.tensor, size)
        return time + (self._latency(layout.tensor) if layout.attention_data > 1 else 0.0)

    def _hand_on(self, stage: int, tokens: int, outputs: int) -> float:
        """Seconds of what a stage gives away: hidden states and residual to the next one, the last one's logits."""
        if stage < self.layout.pipeline - 1:
            return self._latency(2) + 4 * self.shape.hidden * tokens / (self.card.link_bandwidth * LINK_EFFICIENCY)
        # A gather moves half the bytes of an all-reduce.
        return self._all_reduce(self.layout.tensor, self.shape.vocabulary * outputs)

    def _all_reduce(self, ranks: int, size: float) -> float:
        if ranks == 1:
            return 0.0
        return self._latency(ranks) + 2 * (ranks - 1) / ranks * size / (self.card.link_bandwidth * LINK_EFFICIENCY)

    def _latency(self, ranks: int) -> float:
        constant, each = LATENCY[self.card.link]
        return constant + each * ranks
