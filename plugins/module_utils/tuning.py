# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tuning: what the user asks for, the model and the GPUs → layout, settings and environment, each with its reason.

Whatever the user gave, as a setting or as an exact flag, is left alone and planned around.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils import flags as flag_room
from ansible_collections.inference.sglang.plugins.module_utils import launch_rules, memory, spellings
from ansible_collections.inference.sglang.plugins.module_utils.estimates import Estimate, EstimateError, Work, roofline
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, errors
from ansible_collections.inference.sglang.plugins.module_utils.flags import FlagTable
from ansible_collections.inference.sglang.plugins.module_utils.gpus import Card
from ansible_collections.inference.sglang.plugins.module_utils.launch_rules import Launch
from ansible_collections.inference.sglang.plugins.module_utils.memory import GIB, Budget, Layout, Load
from ansible_collections.inference.sglang.plugins.module_utils.models import ModelError, Shape

HERE = "plugins/module_utils/tuning.py"
MEASURED = "docs/measurements.md"

CONCURRENCY = {"interactive": 8, "throughput": 64}
"""Requests at a time that are planned for where nothing is promised, by objective."""

CONTEXT = 32768
"""Tokens of a request where nothing is promised; a model's own context, if it is shorter."""

HELD = 2048
"""Tokens that each request at a time holds where nothing is promised; the context, if it is shorter."""

CHUNKS = ((35, 2048), (60, 4096), (160, 8192), (math.inf, 16384))
"""SGLang's own choice of the prefill chunk, in tokens, on cards below so many GiB: ``_handle_gpu_memory_settings`` in
``srt/server_args.py`` of 0.5.12.post1, ``srt/arg_groups/memory_hook.py`` of 0.5.23."""

MOST_PREFILL = 16384
"""Default of ``--max-prefill-tokens``."""

MOST_GRAPHS = 512
"""Largest decode graph that is planned; beyond it, steps are long enough to hide what a launch costs."""

ALIKE = 0.05
"""Share of its tokens by which a layout must be ahead of a plainer one; estimates are no better than that."""

MUCH = 1.2
"""How many times the tokens another layout must give to be named beside one that is asked for."""

ASKED = 4
"""Layouts that an estimator slower than the roofline is asked about."""

SIZES = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "attention_data_parallel")


@dataclass(frozen=True)
class Hardware:
    """The GPUs of one node that the instance may use.

    ``link``   what they share: ``pcie``, ``nvlink``, or empty where it is not known
    ``level``  NCCL's word for the farthest pair of them; empty where nobody looked
    """

    card: Card
    count: int
    link: str = ""
    level: str = ""

    def __str__(self) -> str:
        return f"{self.count} x {self.card.name}" + (f" over {self.link}" if self.link and self.count > 1 else "")


@dataclass(frozen=True)
class Wishes:
    """What the user wrote, presets included.

    ``tuned``              whether anything may be added to what is given
    ``accepted``           ids of errors that the user takes upon himself
    ``objective``          ``interactive``: the speed of one request; ``throughput``: of ``concurrency`` together
    ``concurrency``        requests at a time; None for ``CONCURRENCY``
    ``tokens_per_request`` that each of them holds at once, on average; None for ``HELD``
    ``most_ttft``          milliseconds to the first token, and ``most_tpot`` for each further one; None for no limit
    ``gpus``               their numbers on the node, as nvidia-smi counts; empty for all
    ``read_rate``          MB/s at which the node reads weights; None where nobody measured
    ``serving``            settings of the room ``spellings``
    ``origin``             where a value is from, by setting or variable, for the reasons
    """

    objective: str = "throughput"
    concurrency: int | None = None
    tokens_per_request: int | None = None
    most_ttft: float | None = None
    most_tpot: float | None = None
    gpus: tuple[int, ...] = ()
    nccl_p2p_level: str | None = None
    nccl_algo: str | None = None
    nccl_ib_disable: bool | None = None
    read_rate: float | None = None
    tuned: bool = True
    accepted: frozenset[str] = frozenset()
    serving: Mapping[str, object] = field(default_factory=dict)
    flags: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    origin: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """One layout with all that follows from it.

    ``serving``, ``environment``  given and decided ones together
    ``reasons``                   of what was decided and of what was given, by setting or variable
    ``single``, ``loaded``        expected for one request, and for all that are promised; None where nobody can tell
    ``findings``                  what SGLang, the memory or the rules say against it
    """

    layout: Layout
    serving: Mapping[str, object]
    environment: Mapping[str, str]
    reasons: Mapping[str, str]
    launch: Launch
    load: Load | None = None
    budget: Budget | None = None
    single: Estimate | None = None
    loaded: Estimate | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def able(self) -> bool:
        """Whether nothing stands against it."""
        return not errors(self.findings)


@dataclass(frozen=True)
class Tuning:
    """The answer: the chosen candidate, those that it was chosen from, best first, and what is worth knowing.

    ``concurrency``  requests at a time that were planned for
    """

    chosen: Candidate
    concurrency: int
    candidates: tuple[Candidate, ...] = ()
    findings: tuple[Finding, ...] = ()


Ask = Callable[[Sequence[tuple[Layout, Work]]], tuple[list[Estimate], list[Finding]]]
"""A better estimator than the roofline: an estimate for each question, or none at all and why."""


def tune(
    wishes: Wishes,
    table: FlagTable,
    hardware: Hardware | None,
    shape: Shape | None,
    *,
    patches: frozenset[str] | None = None,
    ask: Ask | None = None,
    keep: Layout | None = None,
) -> Tuning:
    """Choose what the user left open.

    ``keep``  the layout that was chosen before, from the same: estimates vary, and another layout is a restart
    Never raises: what cannot work is an error among the findings, and the candidate that comes nearest is returned.
    """
    first = _tune(_Planner(wishes, table, hardware, shape, patches), ask, keep)
    if first.chosen.able or wishes.concurrency or wishes.tokens_per_request:
        return first
    # Nothing was promised: so less is, until it fits.
    for promised in _halves(first.concurrency):
        less = _tune(_Planner(replace(wishes, concurrency=promised), table, hardware, shape, patches), ask, keep)
        if less.chosen.able:
            seen = f"{first.concurrency} requests at a time do not fit, and none were promised: planned for {promised}"
            remedy = "Set sglang_server_concurrency and sglang_server_tokens_per_request to what is to be served"
            return replace(less, findings=(*less.findings, Finding("tuning.promise", "info", seen, remedy, HERE)))
    return first


def _halves(start: int) -> Iterator[int]:
    while start > 1:
        start //= 2
        yield start


def _tune(planner: _Planner, ask: Ask | None, keep: Layout | None) -> Tuning:
    wishes, hardware, shape, given = planner.wishes, planner.hardware, planner.shape, planner.given
    if not wishes.tuned or hardware is None or shape is None or given.text("--device") not in ("", "cuda"):
        candidate = planner.candidate(planner.asked_layout())
        return Tuning(candidate, planner.total, (candidate,), (*candidate.findings, *planner.unknown()))
    known = (hardware, shape)
    if any(planner.is_given(name) for name in SIZES):
        candidate = planner.candidate(planner.asked_layout(), known)
        findings = (*candidate.findings, *planner.doubts(candidate), *planner.faster(candidate, known))
        return Tuning(candidate, planner.total, (candidate,), findings)
    tried = [planner.candidate(layout, known) for layout in planner.layouts(*known)]
    able = [candidate for candidate in tried if candidate.able]
    kept = [candidate for candidate in able if replace(candidate.layout, partition=(), all_to_all=False) == keep]
    # A layout that stays needs no better estimator.
    able = planner.rank(able, None if kept else ask)
    able = kept + [candidate for candidate in able if candidate not in kept]
    unable = sorted((candidate for candidate in tried if not candidate.able), key=_shortfall)
    if not tried:
        candidate = planner.candidate(planner.asked_layout())
        seen = f"no split of {hardware.count * given.node_count} GPUs suits {shape.architecture}"
        seen += f", which has {len(shape.layers)} layers and {shape.heads} attention heads"
        wrong = Finding("tuning.no_layout", "error", seen, "Choose fewer of the GPUs in sglang_server_gpus", HERE)
        return Tuning(candidate, planner.total, (), (*candidate.findings, wrong))
    if not able:
        return Tuning(unable[0], planner.total, tuple(unable), unable[0].findings)
    chosen = replace(able[0], reasons=_explained(able, wishes, kept=bool(kept)))
    findings = (*chosen.findings, *planner.doubts(chosen), *planner.fewer(chosen, known), *planner.findings)
    return Tuning(chosen, planner.total, (chosen, *able[1:], *unable), findings)


def _shortfall(candidate: Candidate) -> tuple[int, int]:
    """What stands against a layout: errors besides its memory, then the bytes that are missing."""
    budget = candidate.budget
    missing = budget.missing if budget is not None and budget.stages and not budget.fits else 0
    return len(errors(candidate.findings)) - (missing > 0), missing


def _explained(able: list[Candidate], wishes: Wishes, *, kept: bool) -> Mapping[str, str]:
    """The chosen layout's reasons, with why it is the chosen one."""
    best = able[0]
    said = f"{best.layout}: the only layout that fits"
    estimate = _judged(best, wishes)
    if len(able) > 1 and estimate:
        # Numbers of two estimators are not compared.
        others = {
            str(other.layout): found.tokens_per_second
            for other in able[1:]
            if (found := _judged(other, wishes)) and found.source == estimate.source
        }
        fastest = max(others, key=lambda layout: others[layout], default="")
        requests = _judged_concurrency(wishes)
        said = (
            f"{best.layout}: of {len(able)} layouts that fit, the plainest that none is {ALIKE:.0%} faster than: "
            f"{estimate.tokens_per_second:.0f} tok/s for {requests} request{'s' if requests > 1 else ''} at a time; "
            + (f"the best other, {fastest}, {others[fastest]:.0f} " if others else "")
            + f"({estimate.source})"
        )
    elif len(able) > 1:
        said = f"{best.layout}: nothing is known of this GPU's speed, so the layout with fewest stages is taken"
    if kept:
        said = f"{best.layout}: kept, as nothing that it was chosen from has changed"
    sizes = (best.layout.tensor, best.layout.pipeline, best.layout.expert, best.layout.attention_data)
    first = SIZES[max(range(len(SIZES)), key=lambda index: sizes[index])]
    return {**best.reasons, **dict.fromkeys(SIZES, "of the same layout"), first: said}


def _plainness(layout: Layout) -> tuple[int, int, int]:
    """Less is plainer: fewer parts that work differently from one GPU alone."""
    return layout.pipeline, layout.attention_data, layout.expert


def _judged_concurrency(wishes: Wishes) -> int:
    return 1 if wishes.objective == "interactive" else wishes.concurrency or CONCURRENCY[wishes.objective]


def _judged(candidate: Candidate, wishes: Wishes) -> Estimate | None:
    return candidate.single if wishes.objective == "interactive" else candidate.loaded


class _Planner:
    """What all candidates of one question share."""

    def __init__(
        self,
        wishes: Wishes,
        table: FlagTable,
        hardware: Hardware | None,
        shape: Shape | None,
        patches: frozenset[str] | None,
    ) -> None:
        self.wishes, self.table, self.hardware, self.shape, self.patches = wishes, table, hardware, shape, patches
        self.rest = table, hardware, shape, patches
        self.given = self.launch({}, {})
        self.findings: list[Finding] = []

    def launch(self, serving: Mapping[str, object], environment: Mapping[str, str]) -> Launch:
        """What would be started with these decisions beside what is given."""
        wishes, hardware, shape = self.wishes, self.hardware, self.shape
        return Launch(
            release=self.table.release,
            table=self.table,
            flags={**spellings.spell({**serving, **wishes.serving}, self.table), **_exact(wishes.flags)},
            environment={**environment, **wishes.environment},
            shape=shape,
            capability=hardware.card.capability or None if hardware else None,
            gpu_count=hardware.count if hardware else None,
            links=hardware.link or None if hardware else None,  # type: ignore[arg-type]
            patches=self.patches,
            concurrency=wishes.concurrency,
            load_bytes=shape.size.bytes if shape else None,
            read_rate=wishes.read_rate,
        )

    def is_given(self, name: str) -> bool:
        """Whether the user gave a setting, or any flag that it is in some release."""
        if name in self.wishes.serving and spellings.is_set(name, self.wishes.serving[name]):
            return True
        if name == "attention_data_parallel":
            # --dp-size alone is whole copies of the model.
            return self.given.attention_data > 1
        known = {flag for spelling in spellings.SETTINGS[name].spellings for flag in spelling}
        return any(flag in self.table and self.given.given(flag) is not None for flag in known)

    def asked_layout(self) -> Layout:
        """What is given, with SGLang's own defaults for the rest."""
        given = self.given
        tensor = given.tensor
        return Layout(
            tensor=tensor,
            pipeline=given.pipeline,
            expert=given.expert,
            attention_data=given.attention_data,
            # One stage has all layers, whatever the variable says.
            partition=given.partition
            if given.pipeline > 1 and "SGLANG_PP_LAYER_PARTITION" in given.environment
            else (),
            all_to_all=given.all_to_all != "none",
        )

    def layouts(self, hardware: Hardware, shape: Shape) -> Iterator[Layout]:
        """Every layout of all the GPUs that the model's dimensions allow."""
        count = hardware.count * self.given.node_count // self.given.replicas
        spread = self.given.all_to_all != "none"
        likes = [Layout(all_to_all=spread)]
        if shape.experts:
            likes.append(Layout(expert=2, tensor=2, all_to_all=spread))
        if shape.attention == "mla" and self.wishes.objective == "throughput":
            # Where a request's latent cache is the same on all ranks, each rank can keep its own requests instead.
            likes += [replace(like, tensor=2, attention_data=2) for like in likes]
        seen = set()
        for like in likes:
            for layout in memory.layouts(shape, count, like):
                # A tensor group that spans nodes is at the mercy of their network.
                if layout not in seen and layout.tensor <= hardware.count:
                    seen.add(layout)
                    yield layout

    def candidate(self, layout: Layout, known: tuple[Hardware, Shape] | None = None) -> Candidate:
        """All that follows from a layout; only what is given, without ``known``."""
        draft = _Draft(self, layout)
        if known:
            draft.sizes()
            draft.batches(*known)
            draft.kernels(known[1])
        draft.fit(decide=known is not None)
        draft.asked_variables()
        if known:
            draft.variables(known[0])
        return draft.candidate()

    def rank(self, able: list[Candidate], ask: Ask | None) -> list[Candidate]:
        """Best first: of those that keep what is promised, the plainest that nothing is noticeably faster than."""

        def key(candidate: Candidate) -> tuple[bool, float]:
            return bool(self.limits(candidate)), -self.speed(candidate)

        ordered = sorted(able, key=key)
        first, rest = ordered[:ASKED], ordered[ASKED:]
        if ask and first:
            questions = [(candidate.layout, work) for candidate in first for work in self.works(candidate)]
            answers, self.findings = ask(questions)
            if answers:
                pairs = zip(first, answers[::2], answers[1::2], strict=True)
                answered = [replace(candidate, single=single, loaded=loaded) for candidate, single, loaded in pairs]
                ordered = sorted(answered, key=key) + rest
        if not ordered:
            return []
        late, speed = key(ordered[0])
        alike = [
            candidate
            for candidate in ordered
            if key(candidate)[0] == late and self.speed(candidate) >= -speed * (1 - ALIKE)
        ]
        plainest = min(alike, key=lambda candidate: _plainness(candidate.layout))
        return [plainest, *(candidate for candidate in ordered if candidate is not plainest)]

    def speed(self, candidate: Candidate) -> float:
        """Expected tok/s at what the objective is judged by; 0 where nobody can tell."""
        estimate = _judged(candidate, self.wishes)
        return estimate.tokens_per_second if estimate else 0.0

    def works(self, candidate: Candidate) -> tuple[Work, Work]:
        """One request, and all that are promised."""
        launch, batch = candidate.launch, candidate.launch.micro_batch or 0
        work = Work(
            concurrency=1,
            depth=launch.depth,
            micro_batch=batch if launch.pipeline > 1 else 0,
            graphs=launch.graphs,
            prefill_graphs=bool(candidate.load and candidate.load.prefill_graphs),
            kv_type=launch.text("--kv-cache-dtype") or "auto",
        )
        running = -(-launch.running // launch.replicas) if launch.running else self.concurrency
        return work, replace(work, concurrency=min(self.concurrency, running))

    @property
    def concurrency(self) -> int:
        """Requests at a time that are planned for, on each copy of the model."""
        promised = self.wishes.concurrency or self.given.running or CONCURRENCY[self.wishes.objective]
        return -(-promised // self.given.replicas)

    @property
    def total(self) -> int:
        """Requests at a time that are planned for, on all copies of the model."""
        return self.concurrency * self.given.replicas

    def doubts(self, candidate: Candidate) -> list[Finding]:
        """What is promised and not expected to hold."""
        running, promised = candidate.launch.running, self.wishes.concurrency
        found = self.limits(candidate)
        if running and promised and running < promised:
            seen = f"{promised} requests at a time are promised, and at most {running} run: the others wait"
            remedy = "Raise sglang_server_max_running_requests, or promise less in sglang_server_concurrency"
            found.append(Finding("tuning.running", "warning", seen, remedy, HERE))
        return found

    def faster(self, asked: Candidate, known: tuple[Hardware, Shape]) -> list[Finding]:
        """That another layout is expected to give much more than the one that is asked for."""
        speed = self.speed(asked)
        if not speed:
            return []
        planner = _Planner(replace(self.wishes, serving=_without_sizes(self.wishes.serving)), *self.rest)
        others = [planner.candidate(layout, known) for layout in planner.layouts(*known)]
        best = max((other for other in others if other.able), key=planner.speed, default=asked)
        if planner.speed(best) < speed * MUCH:
            return []
        seen = f"{best.layout} is expected to give {planner.speed(best):.0f} tok/s, {asked.layout} {speed:.0f}"
        remedy = "Leave the sizes to the plan, or measure both"
        return [Finding("tuning.faster", "info", seen, remedy, HERE)]

    def fewer(self, chosen: Candidate, known: tuple[Hardware, Shape]) -> list[Finding]:
        """That fewer GPUs would give more: numbers of heads and experts are divided by powers of two."""
        hardware, shape = known
        count = 1 << (hardware.count.bit_length() - 1)
        if count == hardware.count:
            return []
        planner = _Planner(self.wishes, self.table, replace(hardware, count=count), shape, self.patches)
        smaller = (replace(hardware, count=count), shape)
        candidates = [planner.candidate(layout, smaller) for layout in planner.layouts(*smaller)]
        best = max((planner.speed(candidate) for candidate in candidates if candidate.able), default=0.0)
        if best <= self.speed(chosen):
            return []
        seen = f"{count} of the {hardware.count} GPUs are expected to give {best:.0f} tok/s, all of them "
        seen += f"{self.speed(chosen):.0f}: no layout divides the model evenly by {hardware.count}"
        return [Finding("tuning.fewer_gpus", "warning", seen, f"Name {count} of them in sglang_server_gpus", HERE)]

    def limits(self, candidate: Candidate) -> list[Finding]:
        """Which of the promised latencies are not expected to hold."""
        found, estimate = [], candidate.loaded
        if estimate is None:
            return []
        for name, limit, seconds in (
            ("most_ttft", self.wishes.most_ttft, estimate.time_to_first_token),
            ("most_tpot", self.wishes.most_tpot, estimate.time_per_token),
        ):
            if limit is not None and seconds * 1000 > limit:
                seen = (
                    f"{candidate.layout} is expected to take {seconds * 1000:.0f} ms with {self.concurrency} requests "
                    f"at a time ({estimate.source}), and {name} is {limit:g} ms"
                )
                found.append(
                    Finding(f"tuning.{name}", "warning", seen, "Promise fewer requests at a time, or more GPUs", HERE)
                )
        return found

    def unknown(self) -> list[Finding]:
        """Why nothing was planned, where the user did not ask for that."""
        wanted = self.wishes.tuned and self.given.text("--device") in ("", "cuda")
        missing = [
            name for name, value in (("the GPUs", self.hardware), ("the model's shape", self.shape)) if value is None
        ]
        if not wanted or not missing:
            return []
        remedy = (
            "Set sglang_server_gpu_model, sglang_server_gpu_count and sglang_server_model_shape to plan without the "
            "node; a run that reaches it reads them there"
        )
        seen = f"{' and '.join(missing)} {'are' if len(missing) > 1 or missing[0].endswith('s') else 'is'} not known"
        return [Finding("tuning.unknown", "info", f"{seen}: layout, batches and memory are not planned", remedy, HERE)]


class _Draft:
    """One candidate while it is made."""

    def __init__(self, planner: _Planner, layout: Layout) -> None:
        self.planner, self.wishes, self.layout = planner, planner.wishes, layout
        self.decided: dict[str, object] = {}
        self.variables_decided: dict[str, str] = {}
        self.reasons: dict[str, str] = dict(planner.wishes.origin)
        self.findings: list[Finding] = []
        self.load: Load | None = None
        self.budget: Budget | None = None

    @property
    def launch(self) -> Launch:
        return self.planner.launch(self.decided, self.variables_decided)

    def set(self, name: str, value: object, reason: str) -> None:
        """Decide a setting that is not given."""
        if not self.planner.is_given(name):
            self.decided[name] = value
            self.reasons[name] = reason

    def variable(self, name: str, value: str, reason: str) -> None:
        """Decide a variable that is not given."""
        if name not in self.wishes.environment:
            self.variables_decided[name] = value
            self.reasons[name] = reason

    def sizes(self) -> None:
        layout, reason = self.layout, "SGLang's default, beside the sizes that are given"
        for name, size in zip(
            SIZES, (layout.tensor, layout.pipeline, layout.expert, layout.attention_data), strict=True
        ):
            self.set(name, size, reason)
        if layout.expert > 1:
            self.set(
                "expert_all_to_all",
                "none",
                "experts exchange tokens by all-reduce: the other backends need NVLink, and kernels that the release "
                "does not bring",
            )

    def batches(self, hardware: Hardware, shape: Shape) -> None:
        """Slots, micro-batches, graphs. Source: facts on the pipeline loop in docs/architecture.md, ``packed_slot``."""
        planner, launch, stages = self.planner, self.launch, self.layout.pipeline
        promised = planner.concurrency
        context = min(shape.context or CONTEXT, CONTEXT)
        self.set("context_length", context, f"the model's {shape.context} tokens, at most {CONTEXT} unless set")
        memory_size = hardware.card.memory
        reason = f"SGLang's own choice on cards of {memory_size / GIB:.0f} GiB, written to be the same everywhere"
        self.set("chunked_prefill_size", _chunk(memory_size), reason)
        copies = launch.replicas
        if stages == 1:
            self.set("max_running_requests", promised * copies, f"{promised * copies} requests at a time")
            batch = -(-promised // self.layout.attention_data)
            self.graphs(
                min(-(-(self.launch.running or batch * copies) // copies), batch, MOST_GRAPHS),
                "decode graphs for every batch that is promised",
            )
            return
        across = launch.node_count > 1 and launch.before("0.5.23")
        if self.wishes.objective == "interactive" or promised <= stages or across:
            depth, why = 0, f"{promised} requests fill no more than the {stages} slots that depth 0 has"
            if across:
                why = "between nodes more depth can block before 0.5.23"
            elif promised > stages:
                why = "no slot beyond one a stage, so that each request waits for fewer others"
        else:
            depth, why = 1, f"one slot beyond the {stages} stages hides the exchange of outputs; more gave nothing"
        self.set("async_depth", depth, f"{why} ({MEASURED})")
        slots = self.launch.slots
        spread = -(-min(promised, -(-(self.launch.running or promised * copies) // copies)) // slots)
        self.set("micro_batch_size", spread, f"{promised} requests spread over {slots} slots, none packed into one")
        batch = self.launch.micro_batch or spread
        self.set("max_running_requests", slots * batch * copies, f"{slots} slots of {batch} requests")
        self.graphs(
            min(batch, MOST_GRAPHS),
            "decode graphs up to the micro-batch, the largest batch that a stage sees",
        )

    def graphs(self, batch: int, reason: str) -> None:
        """The largest decode graph, where there are graphs at all."""
        if self.launch.graphs:
            self.set("cuda_graph_max_batch_size", batch, reason)

    def kernels(self, shape: Shape) -> None:
        """Backends where SGLang's own choice is not to be relied on."""
        launch = self.launch
        if launch.family == 12 and shape.attention == "mla":
            self.set(
                "attention_backend",
                "triton",
                "the backend with kernels for multi-head latent attention on this architecture",
            )
        if launch.family == 12 and shape.weight_format.name == "nvfp4" and launch.before("0.5.22"):
            self.set("moe_backend", "flashinfer_cutlass", "SGLang chooses it by itself from 0.5.22 on")

    def fit(self, *, decide: bool) -> None:
        """Memory: the fraction, and the layers of each stage."""
        planner, launch, shape, hardware = self.planner, self.launch, self.planner.shape, self.planner.hardware
        if shape is None or hardware is None or not hardware.card.memory or launch.text("--device") not in ("", "cuda"):
            return
        context = launch.number("--context-length") or shape.context or CONTEXT
        held = self.wishes.tokens_per_request or HELD
        graphs = launch.graphs
        self.load = load = Load(
            context=context,
            held=min(held, context),
            concurrency=planner.concurrency,
            kv_type=launch.text("--kv-cache-dtype") or "auto",
            backend=launch.backends[1] or "flashinfer",
            chunk=self.chunk(hardware, context),
            running=-(-(launch.running or 0) // launch.replicas),
            graph_batch=(launch.graph_batch or launch_rules.DEFAULT_GRAPH_BATCH) if graphs else 0,
            decode_batch=(launch.micro_batch or 0) if self.layout.pipeline > 1 else 0,
            prefill_graphs=graphs and self.layout.pipeline == 1 and not shape.vision.bytes,
            adaptive_splits=launch.since("0.5.12"),
            page=max(launch.number("--page-size") or 1, 1),
            speculation=launch.speculation,
            own_draft=launch.own_draft,
            draft_pooled=launch.since("0.5.14"),
            images=launch.images,
            padding=launch.mxfp4_padding,
        )
        if launch.speculation not in ("", "NGRAM") and not launch.own_draft:
            seen = f"the draft model of --speculative-algorithm {launch.speculation} has no known size: "
            seen += f"{memory.spared(launch.speculation) / GIB:.0f} GiB a GPU are left for it, and its KV cache is not "
            seen += "counted"
            remedy = "Compare it with the draft model's files, and lower sglang_server_memory_fraction where it is more"
            self.findings.append(Finding("tuning.draft_model", "warning", seen, remedy, memory.HERE))
        if context > (shape.context or context) and launch.environment.get(
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "0"
        ).lower() in ("0", "false", ""):
            seen = f"a context of {context} tokens is longer than the model's {shape.context}"
            remedy = f"Set sglang_server_context_length to {shape.context} or less"
            source = "sglang/srt/configs/model_config.py, _derive_context_length"
            self.findings.append(Finding("tuning.context", "error", seen, remedy, source))
        try:
            budget = memory.plan(shape, self.layout, hardware.card, load)
            if decide and budget.better_partition:
                better = budget.better_partition
                layers = ",".join(map(str, better))
                even = replace(self.layout, partition=better)
                reason = f"holds more tokens than stages of {','.join(map(str, budget.partition))} layers"
                self.variable("SGLANG_PP_LAYER_PARTITION", layers, reason)
                if self.variables_decided.get("SGLANG_PP_LAYER_PARTITION") == layers:
                    self.layout, budget = even, memory.plan(shape, even, hardware.card, load)
        except ModelError as unknown:
            self.findings += unknown.findings
            return
        self.budget = budget
        self.findings += budget.findings
        fraction = launch.value("--mem-fraction-static")
        if fraction is not None:
            try:
                self.findings += memory.fraction_findings(budget, float(fraction), load)
            except ValueError:
                return  # judged as a flag's value
        elif decide and budget.fits:
            fullest = budget.fullest
            self.set(
                "memory_fraction",
                budget.fraction,
                f"leaves {fullest.reserve / GIB:.1f} GiB a GPU for graphs, activations and communication; "
                f"weights take up to {max(stage.weights for stage in budget.stages) / GIB:.1f} GiB, the KV cache holds "
                f"{budget.tokens} tokens",
            )

    def chunk(self, hardware: Hardware, context: int) -> int:
        """Tokens of prompts that are computed at once.

        0 and less do not cut prompts: ``init_chunked_prefill`` in ``srt/managers/scheduler.py``. Then one prompt may
        be as long as the context, and several are taken up to ``--max-prefill-tokens``.
        """
        launch = self.launch
        given = launch.number("--chunked-prefill-size")
        if given is None:
            return _chunk(hardware.card.memory)
        # SGLang divides only what is given among attention data ranks, as memory does with every chunk.
        whole = max(launch.number("--max-prefill-tokens") or MOST_PREFILL, context) * self.layout.attention_data
        return given if given > 0 else whole

    def asked_variables(self) -> None:
        """Environment of the settings that are variables."""
        wishes = self.wishes
        if wishes.gpus:
            numbers = ",".join(map(str, wishes.gpus))
            self.variable("CUDA_VISIBLE_DEVICES", numbers, "sglang_server_gpus")
            self.variable("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "the GPUs are numbered as nvidia-smi does it")
        if wishes.nccl_p2p_level:
            self.variable("NCCL_P2P_LEVEL", wishes.nccl_p2p_level, self._origin("nccl_p2p_level"))
        if wishes.nccl_ib_disable is not None:
            value = "1" if wishes.nccl_ib_disable else "0"
            self.variable("NCCL_IB_DISABLE", value, self._origin("nccl_ib_disable"))
        if wishes.nccl_algo:
            self.variable("NCCL_ALGO", wishes.nccl_algo, self._origin("nccl_algo"))
        if wishes.serving.get("p2p_fallback") is True:
            asked = self._origin("p2p_fallback")
            reason = f"{asked}: nothing goes from GPU to GPU directly, which IOMMU or ACS can hang"
            self.variable("NCCL_P2P_DISABLE", "1", f"{reason} (local-inference-lab/rtx6kpro#15)")
            self.reasons["p2p_fallback"] = f"{asked}: with NCCL_P2P_DISABLE alone the hang moves on to this all-reduce"

    def variables(self, hardware: Hardware) -> None:
        """Environment: each variable for a fault or a fact that is named."""
        launch = self.launch
        if launch.family == 12 and launch.before("0.5.13"):
            reason = "this release would run DeepGEMM on SM120, which it does not fit"
            self.variable("SGLANG_ENABLE_JIT_DEEPGEMM", "0", reason)
        if self.layout.tensor > 1 and launch.graphs and launch.before("0.5.23"):
            reason = "buffers that NCCL registered may hang the replay of graphs; later releases set the same"
            self.variable("NCCL_GRAPH_REGISTER", "0", f"{reason} (sgl-project/sglang#38936)")
        unset = not {"NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE"} & set(self.variables_decided)
        if unset and self.layout.gpus > 1 and hardware.link == "pcie" and hardware.level not in ("", "LOC", "NVL"):
            reason = f"the farthest two GPUs are {hardware.level} apart (nvidia-smi topo -m)"
            self.variable("NCCL_P2P_LEVEL", hardware.level, reason)

    def _origin(self, name: str) -> str:
        return self.wishes.origin.get(name, f"sglang_server_{name}")

    def candidate(self) -> Candidate:
        launch, planner, wishes = self.launch, self.planner, self.wishes
        serving = {**self.decided, **wishes.serving}
        made = Candidate(
            layout=self.layout,
            serving={name: serving[name] for name in spellings.SETTINGS if name in serving},
            environment={**self.variables_decided, **wishes.environment},
            reasons=self.reasons,
            launch=launch,
            load=self.load,
            budget=self.budget,
            findings=accept((*self.findings, *launch_rules.judge(launch)), wishes.accepted),
        )
        shape, hardware = planner.shape, planner.hardware
        if shape is None or hardware is None or not hardware.card.bandwidth or not made.able:
            return made
        if self.layout.tensor > hardware.count or launch.text("--device") not in ("", "cuda"):
            return made  # of networks and processors nothing is known
        try:
            single, loaded = (roofline(shape, self.layout, hardware.card, work) for work in planner.works(made))
        except EstimateError:
            return made  # the card's link is none of its kind: its speed is not known
        together = replace(loaded, tokens_per_second=loaded.tokens_per_second * launch.replicas)
        return replace(made, single=single, loaded=together)


def _without_sizes(serving: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in serving.items() if name not in (*SIZES, "expert_all_to_all")}


def accept(found: Iterable[Finding], accepted: frozenset[str]) -> tuple[Finding, ...]:
    """The findings, those that the user accepted as warnings."""
    return tuple(
        replace(finding, severity="warning", seen=f"accepted: {finding.seen}")
        if finding.id in accepted and finding.severity == "error"
        else finding
        for finding in found
    )


def _chunk(card_bytes: int) -> int:
    return next(tokens for least, tokens in CHUNKS if card_bytes < least * GIB)


def _exact(given: Mapping[str, object]) -> dict[str, Any]:
    return {flag_room.exact(name): value for name, value in given.items()}
