# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Memory against what GPUs and published logs said, and what is told where it does not fit."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
import shapes
from ansible_collections.inference.sglang.plugins.module_utils import memory, models
from ansible_collections.inference.sglang.plugins.module_utils.gpus import CARDS, MIB, Card
from ansible_collections.inference.sglang.plugins.module_utils.memory import (
    GIB,
    Budget,
    Layout,
    Load,
    Stage,
)
from ansible_collections.inference.sglang.plugins.module_utils.models import ModelError, Shape

RTX_PRO_6000, H100, H200 = CARDS["rtx_pro_6000_server"], CARDS["h100"], CARDS["h200"]
SINGLE, PP8 = Layout(), Layout(pipeline=8)
# As the plan would run it: 8 stages with one of 64 requests in eight each, graphs up to that.
STORY = Load(context=32768, concurrency=16, running=64, graph_batch=8)


def shape(name: str, **changes: Any) -> Shape:
    return models.read(shapes.config(name) | changes)[0]


KIMI, DEEPSEEK, QWEN = shape("kimi-k2.5"), shape("deepseek-v3"), shape("qwen3-235b-a22b")
LLAMA, TIED, GPT_OSS = shape("llama-3.1-8b"), shape("llama-3.2-1b"), shape("gpt-oss-120b")


@dataclass(frozen=True)
class Run:
    """Two H200, SGLang 0.5.12.post1, PyTorch 2.11.0+cu130, 2026-11-29, one run each; GiB that SGLang logged ("GB").

    Dummy weights of ``kimi-like-8-layers.json`` in bf16, ``--attention-backend triton --mem-fraction-static 0.8
    --context-length 32768 --max-running-requests 64 --chunked-prefill-size 8192 --cuda-graph-max-bs 32``.
    ``before``  "Load weight begin. avail mem", on the rank with least
    ``grown``   MiB that memory.used of nvidia-smi grew by prompts: one of 128 tokens, 8 of 128, 4 of 8192, 1 and 4 of
                30000, in this order, then by decoding 64 requests at once, which has no graph; last stage
    ``prefill_graphs``  "Capture piecewise CUDA graph end. mem usage"
    """

    layout: Layout
    before: float
    weights: tuple[float, ...]
    tokens: int
    graphs: float
    prefill_graphs: float
    grown: tuple[int, ...]
    eager: int

    @property
    def load(self) -> Load:
        prefills = bool(self.prefill_graphs)
        return Load(32768, 64, graph_batch=32, prefill_graphs=prefills)


RUNS = [
    Run(Layout(), 139.13, (44.19,), 7817836, 1.14, 0.92, (80, 56, 2906, 512, 0), 4098),
    Run(Layout(pipeline=2), 138.31, (19.83, 24.42), 20092211, 1.14, 0, (70, 394, 2640, 512, 112), 0),
    Run(Layout(tensor=2), 138.28, (22.24,), 10297190, 0.67, 1.18, (100, 22, 2170, 0, 0), 2050),
]


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_what_two_gpus_said(run: Run) -> None:
    budget = memory.plan(shape("kimi-like-8-layers"), run.layout, H200, run.load)
    for stage, logged in zip(budget.stages, run.weights, strict=True):
        assert stage.weights / GIB == pytest.approx(logged, abs=0.12)
    assert budget.usable / GIB == pytest.approx(run.before, abs=1.3)
    assert budget.usable / GIB < run.before
    # With what was free, the same number of tokens: the least of all ranks, cut for the widest stage.
    as_logged = replace(budget, usable=round(run.before * GIB))
    assert as_logged.tokens_at(0.8) == pytest.approx(run.tokens, rel=0.002)
    # Nothing took more than was reserved for it, and the reserve is no more than half unused.
    last = budget.stages[-1]
    assert run.graphs + run.prefill_graphs <= last.graphs / GIB + 0.15
    assert sum(run.grown) * MIB <= last.activations + last.communication
    assert run.eager * MIB <= last.activations - memory.METADATA
    taken = (run.graphs + run.prefill_graphs) * GIB + (sum(run.grown) + run.eager) * MIB
    assert 0.5 * last.reserve < taken < last.reserve


def test_what_is_free_before_weights_are_loaded() -> None:
    assert memory.usable_bytes(RTX_PRO_6000, Layout()) == RTX_PRO_6000.memory - (640 + 704) * MIB
    # 137.3 GiB on eight H200 at tensor size 8 (log in sgl-project/sglang#11716).
    for layout in (Layout(tensor=8), PP8, Layout(tensor=2)):
        assert memory.usable_bytes(H200, layout) / GIB == pytest.approx(137.3, abs=0.3)


def test_tokens_of_a_published_start() -> None:
    """vllm-project/vllm#21348: Qwen3-235B-A22B-FP8, 4 H100, --tp 4 --mem-fraction-static 0.93, 367404 tokens."""
    fp8 = shape("qwen3-235b-a22b", quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    budget = memory.plan(fp8, Layout(tensor=4), H100, Load(4096, 32))
    # Less, as these four took less than 2 GiB for NCCL.
    assert 0.95 * 367404 < budget.tokens_at(0.93) < 367404


def test_what_a_published_start_had_left() -> None:
    """sgl-project/sglang#11716: Llama 3.3 70B, 8 H200, 137.29 GiB free before and 11.87 after a pool of 2795207 tokens.

    Between them lie the weights and the table of 4096 requests that SGLang makes where no number is given.
    """
    values = {"num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64}
    (stage,) = memory.plan(
        shape("llama-3.1-8b", **values), Layout(tensor=8), H200, Load(131072, 8, running=4096)
    ).stages
    left = 137.29 - (stage.weights + 2795207 * stage.token + stage.tables) / GIB
    assert left == pytest.approx(11.87, abs=0.5)


# Partitions


def reference(layers: int, stages: int) -> list[int]:
    """``get_pp_indices`` of SGLang, told in other words: rank by rank, one more for each of the last ones."""
    bounds = []
    for rank in range(stages):
        late = max(0, rank - (stages - layers % stages))
        bounds.append(rank * (layers // stages) + late)
    return [end - start for start, end in itertools.pairwise([*bounds, layers])]


def test_partitions_as_sglang_deals_them() -> None:
    assert memory.default_partition(61, 8) == (7, 7, 7, 8, 8, 8, 8, 8)
    assert memory.default_partition(24, 2) == (12, 12)
    assert memory.default_partition(5, 1) == (5,)
    for layers, stages in itertools.product(range(1, 70), range(1, 17)):
        assert list(memory.default_partition(layers, stages)) == reference(layers, stages)


def spread(shape: Shape, layout: Layout, load: Load) -> int:
    return max(stage.weights + stage.kv for stage in memory.plan(shape, layout, H200, load).stages)


@pytest.mark.parametrize("name", ["kimi-like-8-layers", "gpt-oss-120b", "llama-3.2-1b"])
@pytest.mark.parametrize("context", [1024, 131072])
def test_the_best_partition_is_the_best(name: str, context: int) -> None:
    """Against all partitions there are."""
    model = shape(name)
    model = replace(model, layers=model.layers[:8])
    load = Load(context, 8)
    for stages in (2, 3, 4):
        found = memory.best_partition(model, Layout(pipeline=stages), load)
        fullest = {
            parts: spread(model, Layout(pipeline=stages, partition=parts), load)
            for parts in itertools.product(range(1, 9), repeat=stages)
            if sum(parts) == 8
        }
        assert fullest[found] == pytest.approx(min(fullest.values()), rel=0.001)


def test_the_last_stage_of_kimi_is_relieved_of_a_layer() -> None:
    budget = memory.plan(KIMI, PP8, RTX_PRO_6000, STORY)
    assert budget.partition == (7, 7, 7, 8, 8, 8, 8, 8)
    assert budget.better_partition == (8, 7, 7, 8, 8, 8, 8, 7)
    (finding,) = budget.findings
    assert (finding.id, finding.severity) == ("memory.uneven", "info")
    assert finding.remedy == "Set SGLANG_PP_LAYER_PARTITION=8,7,7,8,8,8,8,7"
    even = memory.plan(KIMI, replace(PP8, partition=budget.better_partition), RTX_PRO_6000, STORY)
    # Without the head on a stage of eight layers, all have 2.2 GiB more for 8 layers' KV cache.
    assert even.tokens - budget.tokens == pytest.approx(KIMI.head.bytes / (8 * 1152), rel=0.05)
    assert (even.findings, even.better_partition, even.partition) == ((), (), budget.better_partition)
    # Whoever names a partition has chosen it.
    chosen = memory.plan(KIMI, replace(PP8, partition=budget.partition), RTX_PRO_6000, STORY)
    assert (chosen.tokens, chosen.findings) == (budget.tokens, ())
    assert str(budget.tokens) in finding.seen
    assert str(even.tokens) in finding.seen


def test_a_partition_that_adds_little_is_not_proposed() -> None:
    model = shape("kimi-like-8-layers")
    budget = memory.plan(model, Layout(pipeline=2), H200, Load(8192, 8))
    assert memory.best_partition(model, Layout(pipeline=2), Load(8192, 8)) == budget.partition == (4, 4)
    assert (budget.findings, budget.better_partition) == ((), ())


@pytest.mark.parametrize(
    "layout",
    [
        # Field case C14 E: 8,8,8,8,8,8,8,7 for 61 layers, and C: expert size 8 on tensor size 1.
        replace(PP8, partition=(8, 8, 8, 8, 8, 8, 8, 7)),
        replace(PP8, partition=(30, 31)),
        replace(PP8, partition=(0, 8, 8, 9, 9, 9, 9, 9)),
        replace(PP8, expert=8),
        Layout(pipeline=62),
        Layout(pipeline=10**15),
        Layout(tensor=4, expert=3),
        Layout(tensor=2, expert=4),
        Layout(tensor=4, attention_data=8),
    ],
)
def test_a_layout_that_means_nothing_has_no_stages(layout: Layout) -> None:
    """What is wrong with it is said by launch_rules."""
    budget = memory.plan(KIMI, layout, RTX_PRO_6000, STORY)
    assert (budget.fits, budget.stages, budget.findings) == (False, (), ())
    assert memory.fraction_findings(budget, 0.88, STORY) == []


@pytest.mark.parametrize(
    "layout",
    [PP8, Layout(pipeline=61), Layout(tensor=8, expert=8), Layout(tensor=8, expert=2, attention_data=4)],
)
def test_a_layout_that_means_something(layout: Layout) -> None:
    assert memory.sound(layout, 61)


# Weights


def test_weights_of_a_pipeline_add_up() -> None:
    for model in (KIMI, DEEPSEEK, QWEN, LLAMA):
        absorbed = sum(layer.absorbed.bytes for layer in model.layers)
        for stages in (1, 3, 8):
            found = memory.rank_bytes(model, Layout(pipeline=stages))
            assert sum(found) == model.size.bytes + absorbed + (stages - 1) * model.vision.bytes


def test_embedding_and_head_are_at_the_ends() -> None:
    model = replace(QWEN, layers=QWEN.layers[:9])
    first, middle, last = memory.rank_bytes(model, Layout(pipeline=3))
    assert first - middle == model.embedding.bytes
    assert last - middle == model.head.bytes
    tied = replace(TIED, layers=TIED.layers[:9])
    assert sum(memory.rank_bytes(tied, Layout(pipeline=3))) == tied.size.bytes + tied.embedding.bytes
    assert memory.rank_bytes(tied, Layout()) == (tied.size.bytes,)


def test_what_tensor_ranks_share_and_what_they_repeat() -> None:
    layer, half = KIMI.layers[1], replace(KIMI, layers=KIMI.layers[1:2])
    (found,) = memory.rank_bytes(half, Layout(tensor=8))
    shared = layer.attention + layer.absorbed + layer.shared + layer.routed + KIMI.embedding + KIMI.head
    assert found == pytest.approx(shared.bytes / 8 + layer.replicated.bytes + KIMI.vision.bytes, abs=8)
    # The same bytes, whether ranks share out experts or each expert.
    assert memory.rank_bytes(half, Layout(tensor=8, expert=8)) == (found,)
    assert memory.rank_bytes(half, Layout(tensor=8, expert=2)) == (found,)
    # All-to-all backends keep shared experts whole.
    (whole,) = memory.rank_bytes(half, Layout(tensor=8, expert=8, all_to_all=True))
    assert whole - found == pytest.approx(layer.shared.bytes * 7 / 8, abs=8)
    # With attention data parallelism each rank has all of attention and embedding, but not of the head.
    (data,) = memory.rank_bytes(half, Layout(tensor=8, expert=8, attention_data=8))
    repeated = layer.attention + layer.absorbed + KIMI.embedding
    assert data - found == pytest.approx(repeated.bytes * 7 / 8, abs=8)
    dense = replace(KIMI, layers=KIMI.layers[:1])
    assert memory.rank_bytes(dense, Layout(tensor=8))[0] == pytest.approx(
        found - (layer.routed + layer.shared).bytes / 8 - 384 * 7168 * 2 + KIMI.layers[0].dense.bytes / 8, abs=16
    )


def test_experts_that_do_not_share_out_evenly() -> None:
    half = replace(KIMI, layers=KIMI.layers[1:2])
    (even,), (odd,) = (memory.rank_bytes(half, Layout(tensor=8, expert=8)), memory.rank_bytes(half, Layout(5, 1, 5)))
    one = KIMI.layers[1].routed.bytes / 384
    assert odd - even > (77 - 48) * one


def test_kv_heads_are_not_split_below_one() -> None:
    model = replace(QWEN, layers=QWEN.layers[:1])
    layer = model.layers[0]
    found = [memory.rank_bytes(model, Layout(tensor=size))[0] for size in (4, 8)]
    rest = model.size.bytes - layer.key_value.bytes - layer.replicated.bytes
    assert found[0] - found[1] == pytest.approx(rest / 8, abs=16)


def test_padding_of_mxfp4() -> None:
    model = replace(GPT_OSS, layers=GPT_OSS.layers[:1])
    layer = model.layers[0]
    for tensor, width in ((1, 3072), (8, 512)):
        (found,) = memory.rank_bytes(model, Layout(tensor=tensor))
        ends = (model.embedding + model.head + layer.attention + layer.key_value).bytes / tensor
        padded = layer.routed.bytes / tensor * 3072 / 2880 * width / (2880 // tensor)
        assert found == pytest.approx(ends + layer.replicated.bytes + padded, abs=16)
    assert memory.rank_bytes(model, Layout(), 1)[0] < memory.rank_bytes(model, Layout())[0] / 3
    # Whole experts are padded less.
    shared = memory.rank_bytes(model, Layout(tensor=8, expert=8))[0] - memory.rank_bytes(model, Layout(tensor=8))[0]
    assert shared == pytest.approx(layer.routed.bytes / 8 * 3072 / 2880 * (3072 / 2880 - 512 / 360), abs=16)


def test_what_a_step_reads_on_a_rank() -> None:
    for model in (KIMI, DEEPSEEK, QWEN, LLAMA, TIED):
        for batch in (1, 8, 64):
            assert sum(memory.rank_bytes(model, Layout(), batch)) == pytest.approx(model.read_bytes(batch), rel=1e-6)
            staged = memory.rank_bytes(model, PP8, batch)
            assert sum(staged) == pytest.approx(model.read_bytes(batch), rel=1e-6)
    single, eight = memory.rank_bytes(KIMI, Layout(), 8)[0], memory.rank_bytes(KIMI, Layout(tensor=8), 8)[0]
    replicated = sum(layer.replicated.bytes for layer in KIMI.layers)
    assert eight == pytest.approx((single - replicated) / 8 + replicated, rel=1e-6)


# Buffers


@pytest.mark.parametrize(
    ("batch", "tensor", "gib"), [(256, 1, 8.0), (64, 1, 2.0), (8, 1, 0.25), (512, 8, 2.0), (0, 1, 0)]
)
def test_partial_results_of_triton(batch: int, tensor: int, gib: float) -> None:
    """64 heads of 512 values, 256 splits of 4 bytes on 188 multiprocessors (init_cuda_graph_state)."""
    found = memory.decode_buffer(KIMI, Layout(tensor=tensor), STORY, 188, batch)
    assert found / GIB == pytest.approx(gib, rel=0.003)


@pytest.mark.parametrize(
    ("multiprocessors", "context", "adaptive", "splits"),
    [
        (188, 32768, True, 256),
        (132, 32768, True, 256),
        (128, 32768, True, 128),
        (188, 4096, True, 128),
        (188, 4097, True, 256),
        (188, 200, True, 8),
        (1, 32768, True, 8),
        (188, 32768, False, 8),
    ],
)
def test_splits_of_mla(multiprocessors: int, context: int, adaptive: bool, splits: int) -> None:
    load = Load(context, 1, adaptive_splits=adaptive)
    assert memory.decode_splits(KIMI, load, multiprocessors) == splits
    assert memory.decode_splits(QWEN, load, multiprocessors) == 8


def stage(model: Shape = KIMI, layout: Layout = SINGLE, **changes: Any) -> Stage:
    return memory.plan(model, layout, RTX_PRO_6000, replace(Load(32768, 256), **changes)).stages[0]


def test_graphs_cost_what_their_batch_does() -> None:
    assert stage().graphs == 0
    buffers = 256 * (64 * 256 * 513 * 4 + 32768 * 9 + 2 * MIB)
    assert stage(graph_batch=256).graphs == buffers
    assert stage(graph_batch=8).graphs == buffers // 32
    # No batch is captured that the table of requests cannot hold.
    assert stage(graph_batch=512).graphs == buffers
    assert stage(graph_batch=256, running=8).graphs == buffers // 32
    assert stage(graph_batch=256, backend="fa3").graphs == 256 * 2 * MIB
    assert stage(graph_batch=256, adaptive_splits=False).graphs == 256 * (64 * 8 * 513 * 4 + 32768 * 9 + 2 * MIB)
    assert stage(prefill_graphs=True).graphs == 1536 * MIB
    assert stage(QWEN, prefill_graphs=True, graph_batch=8, backend="fa3").graphs == (512 + 16) * MIB


def test_graphs_of_attention_data_ranks() -> None:
    layout = Layout(tensor=8, attention_data=8)
    assert stage(layout=layout, graph_batch=16, backend="fa3").graphs == 16 * (2 + 3 * 8) * MIB
    wide = stage(layout=layout, graph_batch=304, concurrency=4096, backend="fa3").graphs
    assert wide == 304 * (2 + 4.5 * 8) * MIB
    for batch, more in ((300, 3), (301, 4.5)):
        found = stage(layout=layout, graph_batch=batch, concurrency=4096, backend="fa3").graphs
        assert found == batch * (2 + more * 8) * MIB
    # Each rank has an eighth of the requests.
    assert stage(layout=layout, graph_batch=64, backend="fa3").graphs == 32 * (2 + 3 * 8) * MIB


def test_a_table_entry_for_each_token_of_each_request() -> None:
    assert stage().tables == 256 * 32768 * 4
    assert stage(running=64).tables == 64 * 32768 * 4
    assert stage(layout=Layout(tensor=8, attention_data=8)).tables == 32 * 32768 * 4


def test_what_activations_grow_with() -> None:
    base = stage(graph_batch=256).activations
    assert base == memory.METADATA + 2 * 2 * 8192 * (64 * (192 + 1024 + 64 + 128) + 4 * 7168)
    assert stage(graph_batch=256, chunk=4096).activations == memory.METADATA + (base - memory.METADATA) // 2
    # Decoding without a graph: two batches' buffers live together.
    assert stage(graph_batch=8).activations - base == 2 * 256 * 64 * 256 * 513 * 4
    assert stage(graph_batch=8, decode_batch=16).activations - base == 2 * 16 * 64 * 256 * 513 * 4
    assert stage(graph_batch=8, decode_batch=8).activations == base
    # The micro-batch, by SGLang's own rule an equal part for each stage.
    assert stage(layout=PP8, graph_batch=32).activations == base
    assert stage(layout=PP8, graph_batch=31).activations > base
    assert stage(layout=Layout(pipeline=61), running=16, graph_batch=1).activations == base
    # Experts count where they are wider than attention: 8 of them keep 2048 + 7168 values a token.
    split = stage(layout=Layout(tensor=8), graph_batch=256).activations
    assert split == memory.METADATA + 2 * 2 * 8192 * (8 * (256 + 7168) + 4 * 7168)
    whole = stage(layout=Layout(tensor=8, expert=8), graph_batch=256).activations
    assert whole == memory.METADATA + 2 * 2 * 8192 * (8 * (2048 + 7168) + 4 * 7168)
    llama = stage(LLAMA, graph_batch=256).activations
    assert llama == memory.METADATA + 2 * 2 * 8192 * (3 * 14336 + 4 * 4096)
    heads = replace(LLAMA, width=1000)
    assert stage(heads, graph_batch=256).activations == memory.METADATA + 2 * 2 * 8192 * (2 * 40 * 128 + 4 * 4096)
    two = stage(heads, Layout(tensor=2), graph_batch=256).activations
    assert two == memory.METADATA + 2 * 2 * 8192 * (2 * 20 * 128 + 4 * 4096)
    data = stage(layout=Layout(tensor=8, expert=8, attention_data=8), graph_batch=256).activations
    assert data == whole


def test_an_unpacked_prefix_of_mla() -> None:
    def taken(**changes: Any) -> int:
        return stage(graph_batch=256, backend="flashinfer", **changes).activations - stage(graph_batch=256).activations

    a_token = 2 * 2 * 64 * (128 + 64 + 128 + 128 + 128)
    assert taken() == a_token * 131072
    assert taken(context=1000, concurrency=2) == a_token * 2000
    assert stage(QWEN, backend="flashinfer").activations == stage(QWEN, backend="fa3", graph_batch=8).activations
    assert stage(graph_batch=256, backend="aiter").activations == stage(graph_batch=256).activations


def test_stages_talk_to_their_neighbours() -> None:
    assert stage().communication == 0
    found = stage(layout=Layout(pipeline=2), graph_batch=256)
    assert found.communication == 544 * MIB
    assert found.other == found.tables + found.communication + memory.MARGIN
    assert found.reserve == found.graphs + found.activations + found.other
    assert found.needed == found.weights + found.kv + found.reserve


# KV cache


def test_a_pool_for_sliding_windows() -> None:
    """Tokens of the sliding layers are 0.8 of the others': HybridSWAPoolConfigurator."""
    load = Load(1024, 4)
    assert stage(GPT_OSS, context=1024, concurrency=4).token == pytest.approx((18 + 18 * 0.8) * 2048)
    assert stage(replace(GPT_OSS, split_pool=False)).token == 36 * 2048
    budget = memory.plan(GPT_OSS, Layout(pipeline=2), RTX_PRO_6000, load)
    assert [found.token for found in budget.stages] == [pytest.approx((9 + 9 * 0.8) * 2048)] * 2


@pytest.mark.parametrize(
    ("changes", "layout", "promised"),
    [
        ({}, Layout(), 100 * 1001),
        ({"page": 64}, Layout(), 100 * 1024),
        ({}, Layout(tensor=8, attention_data=8), 13 * 1001),
        ({}, PP8, 100 * 1001),
    ],
)
def test_what_is_promised(changes: dict[str, Any], layout: Layout, promised: int) -> None:
    budget = memory.plan(KIMI, layout, RTX_PRO_6000, replace(Load(1001, 100), **changes))
    assert budget.promised == promised
    assert budget.stages[0].kv == promised * budget.stages[0].token


def test_an_unknown_cache_type_is_refused() -> None:
    with pytest.raises(ModelError):
        memory.plan(KIMI, PP8, RTX_PRO_6000, replace(STORY, kv_type="int3"))


# The fraction


def plans() -> list[tuple[Shape, Layout, Card, Load, Budget]]:
    """A thousand settings, whatever comes of them."""
    chance = random.Random(4)  # noqa: S311
    found = []
    for _ in range(1000):
        model = chance.choice([KIMI, DEEPSEEK, QWEN, LLAMA, TIED, GPT_OSS])
        tensor = chance.choice([1, 2, 4, 8])
        layout = Layout(tensor, chance.choice([1, 2, 4, 8]), chance.choice([1, tensor]), chance.choice([1, tensor]))
        if chance.random() < 0.3:
            cuts = sorted(chance.sample(range(1, len(model.layers)), layout.pipeline - 1))
            parts = tuple(b - a for a, b in itertools.pairwise([0, *cuts, len(model.layers)]))
            layout = replace(layout, partition=parts)
        load = Load(
            context=chance.choice([1000, 8192, 32768, 131072]),
            concurrency=chance.choice([1, 4, 16, 64, 256]),
            kv_type=chance.choice(["auto", "fp8_e4m3"]),
            graph_batch=chance.choice([0, 8, 64, 256]),
            page=chance.choice([1, 64]),
            chunk=chance.choice([2048, 8192]),
        )
        card = chance.choice([RTX_PRO_6000, H100, H200])
        found.append((model, layout, card, load, memory._budget(model, layout, card, load)))
    return found


PLANS = plans()


def test_a_fraction_serves_what_is_promised_and_spares_the_reserve() -> None:
    """The promise of the room, whatever is asked."""
    fitting = [entry for entry in PLANS if entry[-1].fits]
    assert 200 < len(fitting) < 900
    for *_, load, budget in fitting:
        assert 0 < budget.fraction < 1
        assert budget.fraction == round(budget.fraction, 3)
        assert budget.tokens == budget.tokens_at(budget.fraction, load.page) >= budget.promised
        step = 0.001 * budget.usable
        for found in budget.stages:
            assert found.weights + budget.tokens * found.token + found.reserve <= budget.usable + step
        assert (
            memory.fraction_findings(replace(budget, usable=budget.usable + round(step)), budget.fraction, load) == []
        )


def test_a_plan_that_does_not_fit_has_no_fraction() -> None:
    for model, layout, card, load, budget in PLANS:
        if budget.fits:
            assert budget.missing <= 0
            continue
        assert (budget.fraction, budget.tokens) == (0, 0)
        assert budget.missing > 0
        # With what is missing it does fit, with less it does not.
        roomier = memory._budget(model, layout, replace(card, memory=card.memory + budget.missing), load)
        assert roomier.missing == 0
        assert 0 < roomier.fraction < 1
        assert roomier.tokens >= budget.promised
        closer = memory._budget(model, layout, replace(card, memory=card.memory + budget.missing - 1), load)
        assert not closer.fits
        least = (max(s.weights for s in budget.stages) + max(s.kv for s in budget.stages)) / budget.usable
        assert memory.fraction_findings(budget, min(least, 0.999), load)


def test_more_is_held_by_no_larger_fraction() -> None:
    budget = memory.plan(KIMI, PP8, RTX_PRO_6000, STORY)
    assert memory.fraction_findings(budget, budget.fraction, STORY) == []
    (finding,) = memory.fraction_findings(budget, budget.fraction + 0.002, STORY)
    assert finding.id == "memory.fraction_too_large"


def test_pages_are_whole() -> None:
    budget = memory.plan(QWEN, Layout(tensor=8), RTX_PRO_6000, Load(8192, 8, page=64))
    assert budget.tokens % 64 == 0
    assert 0 <= budget.tokens_at(budget.fraction) - budget.tokens < 64


def test_the_pool_is_that_of_the_heaviest_stage_cut_for_the_widest() -> None:
    stages = (
        Stage(0, 1, weights=70 * GIB, token=1000, kv=1, graphs=0, activations=0, tables=0, communication=0),
        Stage(1, 3, weights=50 * GIB, token=4000, kv=1, graphs=0, activations=0, tables=0, communication=0),
    )
    assert Budget(stages, 100 * GIB, 1).tokens_at(0.8) == 10 * GIB // 4000
    assert Budget(stages, 100 * GIB, 1).tokens_at(0.6) < 0


# Where it does not fit


def test_a_refusal_names_stage_bytes_and_what_would_fit() -> None:
    load = replace(STORY, concurrency=64)
    budget = memory.plan(KIMI, PP8, RTX_PRO_6000, load)
    (finding,) = budget.findings
    assert (finding.id, finding.severity) == ("memory.does_not_fit", "error")
    fullest = budget.stages[7]
    assert finding.seen.startswith(f"stage PP7 (8 layers) needs {fullest.needed / GIB:.1f} GiB of ")
    for part in (
        f"{budget.usable / GIB:.1f} GiB on each GPU",
        f"weights {fullest.weights / GIB:.1f} GiB",
        f"for {64 * 32768} tokens 18.0 GiB",
        f"graphs {fullest.graphs / GIB:.1f} GiB",
        f"activations {fullest.activations / GIB:.1f} GiB",
        f"other {fullest.other / GIB:.1f} GiB",
    ):
        assert part in finding.seen
    assert finding.seen.endswith(f"{(fullest.needed - budget.usable) / GIB:.1f} GiB are missing")
    assert [alternative.change for alternative in budget.alternatives] == [
        "sglang_server_kv_cache_type fp8_e4m3",
        "sglang_server_concurrency 34 and sglang_server_max_running_requests 34",
        "sglang_server_context_length 17408",
        "sglang_server_tensor_parallel 1 and sglang_server_pipeline_parallel 16 on 16 GPUs",
    ]
    assert all(alternative.change in finding.remedy for alternative in budget.alternatives)
    assert budget.better_partition == ()


def test_alternatives_fit_and_are_the_nearest() -> None:
    load = replace(STORY, concurrency=64)
    asked = {a.change.split()[0]: a for a in memory.plan(KIMI, PP8, RTX_PRO_6000, load).alternatives}
    fewer, shorter = asked["sglang_server_concurrency"], asked["sglang_server_context_length"]
    more = asked["sglang_server_tensor_parallel"]
    for found in asked.values():
        assert memory.plan(KIMI, found.layout, RTX_PRO_6000, found.load).fits
    one_more = memory._serving(load, fewer.load.concurrency + 1)
    assert not memory.plan(KIMI, PP8, RTX_PRO_6000, one_more).fits
    assert not memory.plan(KIMI, PP8, RTX_PRO_6000, replace(load, context=shorter.load.context + 1024)).fits
    assert (more.layout.gpus, more.load) == (16, load)


def changes(model: Shape, layout: Layout, load: Load, card: Card = RTX_PRO_6000) -> list[str]:
    budget = memory.plan(model, layout, card, load)
    assert not budget.fits
    assert all(memory.plan(model, a.layout, card, a.load).fits for a in budget.alternatives)
    return [alternative.change for alternative in budget.alternatives]


def test_another_partition_may_be_enough() -> None:
    tight = replace(STORY, concurrency=35)
    assert changes(KIMI, PP8, tight)[0] == "SGLANG_PP_LAYER_PARTITION=8,7,7,8,8,8,8,7"
    assert memory.plan(KIMI, PP8, RTX_PRO_6000, tight).better_partition == (8, 7, 7, 8, 8, 8, 8, 7)


def test_smaller_graphs_may_be_enough() -> None:
    load = replace(STORY, running=256, graph_batch=256, decode_batch=8)
    assert "sglang_server_cuda_graph_max_batch_size 32" in changes(KIMI, PP8, replace(load, concurrency=28))
    assert "sglang_server_cuda_graph_max_batch_size 128" in changes(KIMI, PP8, replace(load, concurrency=18))
    # Not where it would be decoded without a graph.
    assert not any("graph" in change for change in changes(KIMI, PP8, replace(load, concurrency=28, decode_batch=256)))


def test_smaller_chunks_may_be_enough() -> None:
    assert "sglang_server_chunked_prefill_size 4096" in changes(KIMI, PP8, replace(STORY, concurrency=38))
    found = changes(KIMI, PP8, replace(STORY, concurrency=36, chunk=16384))
    assert "sglang_server_chunked_prefill_size 4096" in found
    assert not any("8192" in change or "2048" in change for change in found)


def test_halves_end_at_the_least() -> None:
    assert list(memory._halves(64, 8)) == [32, 16, 8]
    assert list(memory._halves(63, 8)) == [31, 15]
    assert list(memory._halves(15, 8)) == list(memory._halves(0, 8)) == []


def test_another_layout_may_be_enough() -> None:
    found = changes(KIMI, Layout(tensor=8), STORY)
    stages = "sglang_server_tensor_parallel 1 and sglang_server_pipeline_parallel"
    assert f"{stages} 8 on 8 GPUs" in found
    assert found[-1] == f"{stages} 16 on 16 GPUs"
    assert changes(QWEN, Layout(tensor=1), Load(8192, 8))[-1].endswith("on 8 GPUs")


def test_nothing_may_be_enough() -> None:
    tiny = Card(memory=16 * GIB, multiprocessors=80)
    assert changes(KIMI, Layout(tensor=8), Load(32768, 16), tiny) == []
    (finding,) = memory.plan(KIMI, Layout(tensor=8), tiny, Load(32768, 16)).findings
    assert finding.remedy == "Serve a smaller model on these GPUs"


def test_a_card_whose_multiprocessors_are_not_known_may_have_many() -> None:
    load = Load(131072, 1)
    assert memory.decode_splits(KIMI, load, 0) == memory.decode_splits(KIMI, load, 188) == 256
    assert memory.decode_splits(KIMI, load, 100) == 128


def test_a_cache_of_8_bits_is_not_proposed_twice() -> None:
    narrow = replace(STORY, concurrency=200, kv_type="fp8_e4m3")
    assert not any("fp8" in change for change in changes(KIMI, PP8, narrow))


def test_a_pool_that_another_stage_needs() -> None:
    """The heaviest stage must spare as many bytes as the one with most layers takes for its KV cache."""
    model = replace(TIED, layers=TIED.layers[:3], head=replace(TIED.head, bytes=62 * GIB), tied=False)
    layout = Layout(pipeline=2, partition=(2, 1))
    load = Load(131072, 64)
    budget = memory._budget(model, layout, RTX_PRO_6000, load)
    assert budget.fullest.needed < budget.usable < budget.usable + budget.missing
    (finding,) = memory.plan(model, layout, RTX_PRO_6000, load).findings
    assert finding.seen.endswith("as the one with most layers")
    assert f"{budget.missing / GIB:.1f} GiB are missing" in finding.seen


@pytest.mark.parametrize(
    ("model", "gpus", "like", "expected"),
    [
        (KIMI, 8, Layout(), [(1, 8), (2, 4), (4, 2), (8, 1)]),
        (KIMI, 6, Layout(tensor=2, expert=2), [(1, 6), (2, 3)]),
        (KIMI, 64, Layout(tensor=2, expert=2), [(2, 32), (4, 16), (8, 8), (16, 4), (32, 2), (64, 1)]),
        # 2048 is 16 blocks of 128: no rank may have less than one.
        (DEEPSEEK, 32, Layout(), [(1, 32), (2, 16), (4, 8), (8, 4), (16, 2)]),
        (QWEN, 12, Layout(), [(1, 12), (2, 6), (4, 3)]),
        (GPT_OSS, 16, Layout(), [(1, 16), (2, 8), (4, 4), (8, 2), (16, 1)]),
        (replace(LLAMA, kv_heads=6, heads=24, width=24), 8, Layout(), [(1, 8), (2, 4)]),
        (replace(LLAMA, width=14), 4, Layout(), [(1, 4), (2, 2)]),
        (replace(LLAMA, layers=LLAMA.layers[:4]), 4, Layout(), [(1, 4), (2, 2), (4, 1)]),
        (replace(LLAMA, layers=LLAMA.layers[:4]), 8, Layout(), [(2, 4), (4, 2), (8, 1)]),
        (replace(QWEN, experts=6), 4, Layout(tensor=2, expert=2), [(1, 4), (2, 2)]),
    ],
)
def test_layouts_that_a_model_allows(model: Shape, gpus: int, like: Layout, expected: list[tuple[int, int]]) -> None:
    found = memory.layouts(model, gpus, replace(like, partition=(1,) * like.pipeline))
    assert [(layout.tensor, layout.pipeline) for layout in found] == expected
    assert all(layout.partition == () and layout.gpus == gpus for layout in found)
    assert all(layout.expert == (layout.tensor if like.expert > 1 else 1) for layout in found)


def test_attention_data_ranks_stay_spread() -> None:
    found = memory.layouts(QWEN, 8, Layout(tensor=2, attention_data=2))
    assert [(layout.tensor, layout.attention_data) for layout in found] == [(1, 1), (2, 2), (4, 4), (8, 8)]
    # 16 groups of one rank each share no heads.
    assert Layout(tensor=16, attention_data=16) in memory.layouts(KIMI, 16, Layout(tensor=2, attention_data=2))


def test_a_layout_in_words() -> None:
    assert str(PP8) == "tensor 1, pipeline 8"
    assert str(Layout(tensor=8, expert=8, attention_data=4)) == "tensor 8, expert 8, attention data 4"


# Field case C17: 97887 MiB, 8 stages, 594 GB of weights.


def even_stages(reserve: int) -> Budget:
    weights = 594_000_000_000 // 8
    stages = tuple(
        Stage(
            index,
            8,
            weights=weights,
            token=8 * 1152,
            kv=8192 * 8 * 1152,
            graphs=256 * MIB,
            activations=reserve,
            tables=0,
            communication=0,
        )
        for index in range(8)
    )
    return Budget(stages, 97887 * MIB, 8192)


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [(0.70, ["memory.fraction_too_small"]), (0.88, []), (0.97, ["memory.fraction_too_large"])],
)
def test_a_fraction_squeezed_from_both_sides(fraction: float, expected: list[str]) -> None:
    load = Load(4096, 2)
    findings = memory.fraction_findings(even_stages(4 * GIB), fraction, load)
    assert [finding.id for finding in findings] == expected
    real = memory.plan(KIMI, PP8, RTX_PRO_6000, replace(STORY, concurrency=8))
    assert [finding.id for finding in memory.fraction_findings(real, fraction, STORY)] == expected


def test_what_is_said_of_a_fraction() -> None:
    load = Load(4096, 2)
    (small,) = memory.fraction_findings(even_stages(4 * GIB), 0.70, load)
    assert small.severity == "error"
    assert small.seen == (
        "stage PP0 has 69.2 GiB of weights on each GPU, --mem-fraction-static 0.7 allows 66.9 GiB of 95.6 GiB for them "
        "and the KV cache"
    )
    assert small.remedy == "Set more than 0.724, or spread the model further"
    (large,) = memory.fraction_findings(even_stages(4 * GIB), 0.97, load)
    assert large.severity == "warning"
    assert large.seen == (
        "--mem-fraction-static 0.97 leaves 2.9 GiB on stage PP0 for graphs (0.2 GiB), activations (4.0 GiB) and the "
        "rest (1.5 GiB)"
    )
    assert large.remedy.index("Lower it") < large.remedy.index("smaller batches") < large.remedy.index("last resort")
    fitting = replace(even_stages(4 * GIB), fraction=0.9)
    assert memory.fraction_findings(fitting, 0.70, load)[0].remedy == "Set 0.9"
    assert memory.fraction_findings(fitting, 0.97, load)[0].remedy.startswith("Set 0.9, or")


def test_a_fraction_that_a_published_start_found_too_small() -> None:
    """SemiAnalysisAI/InferenceX#2128: 125.65 GB of weights, 12.25 GB left, --mem-fraction-static 0.88; least 0.9113."""
    free = round((125.65 + 12.25) * GIB)
    only = replace(even_stages(0).stages[0], weights=round(125.65 * GIB), kv=0)
    (finding,) = memory.fraction_findings(Budget((only,), free, 1), 0.88, Load(1, 1))
    assert (finding.id, finding.remedy) == (
        "memory.fraction_too_small",
        "Set more than 0.912, or spread the model further",
    )


def test_a_fraction_that_leaves_few_tokens() -> None:
    budget = memory.plan(KIMI, PP8, RTX_PRO_6000, STORY)
    weights = budget.stages[7].weights / budget.usable
    (few,) = memory.fraction_findings(budget, weights + 0.03, STORY)
    assert (few.id, few.severity, few.remedy) == ("memory.few_tokens", "warning", f"Set {budget.fraction:g}")
    assert f"fewer than {16 * 32768} for 16 requests" in few.seen
    (none,) = memory.fraction_findings(budget, weights + 0.001, STORY)
    assert (none.id, none.severity) == ("memory.few_tokens", "error")
    assert "fewer than one request of 32768" in none.seen
    unfit = memory.plan(KIMI, PP8, RTX_PRO_6000, replace(STORY, concurrency=64))
    assert memory.fraction_findings(unfit, 0.88, replace(STORY, concurrency=64))[0].remedy.startswith("Promise less")


def test_padding_follows_the_runner() -> None:
    """gpt-oss-120b: 2880 is a multiple of 64, and fits on one H100 that way."""
    assert memory.rank_bytes(GPT_OSS, Layout(), padding=(1, 64)) == (GPT_OSS.size.bytes,)
    load = Load(32768, 64, held=2048, backend="fa3")
    assert not memory.plan(GPT_OSS, Layout(), H100, load).fits
    budget = memory.plan(GPT_OSS, Layout(), H100, replace(load, padding=(1, 64)))
    assert budget.fits
    assert budget.stages[0].weights == GPT_OSS.size.bytes


def test_what_a_draft_model_takes() -> None:
    layout, own = Layout(tensor=8), {"speculation": "EAGLE", "own_draft": True}
    plain = stage(DEEPSEEK, layout)
    for algorithm, gib in (("EAGLE3", 4), ("STANDALONE", 6), ("NGRAM", 0)):
        found = stage(DEEPSEEK, layout, speculation=algorithm)
        assert (found.draft, found.reserve - plain.reserve) == (gib * GIB, gib * GIB)
        assert (found.token, found.draft_token) == (plain.token, 0)
    beside = stage(DEEPSEEK, layout, **own)
    # A layer, what joins two states, and copies of embedding and head, in fewer bytes than SGLang spares.
    assert beside.draft == 4 * GIB
    whole = stage(DEEPSEEK, Layout(), **own)
    assert whole.draft == pytest.approx(
        DEEPSEEK.draft.bytes + DEEPSEEK.draft_layers[0].absorbed.bytes + whole.graphs, abs=16
    )
    assert whole.draft > 13 * GIB
    layer = DEEPSEEK.kv_bytes()
    assert (beside.token, beside.draft_token) == (plain.token, layer)
    pooled = stage(DEEPSEEK, layout, draft_pooled=True, **own)
    assert (pooled.token, pooled.draft_token) == (plain.token + layer, 0)
    assert beside.kv == pooled.kv == pytest.approx(plain.kv * 62 / 61, abs=1)


def test_a_draft_beside_the_pool_has_room() -> None:
    model = replace(DEEPSEEK, layers=DEEPSEEK.layers[:4])
    own = Load(8192, 8, speculation="EAGLE", own_draft=True)
    # Little memory, so that nothing is left over.
    budget = memory.plan(model, Layout(), replace(H100, memory=62 * GIB), replace(own, held=64))
    (found,) = budget.stages
    used = found.weights + budget.tokens * (found.token + found.draft_token) + found.reserve
    assert budget.usable * 0.998 < used <= budget.usable
    (finding,) = memory.fraction_findings(budget, budget.fraction + 0.01, own)
    assert finding.id == "memory.fraction_too_large"
    assert f"of it {found.draft / GIB:.1f} GiB for the draft model" in finding.seen


def test_room_for_the_image_encoder() -> None:
    seeing = stage(KIMI, PP8, images=True)
    # 65536 patches of 2 x 15 x 1152 bytes, and the context of the process that prepares images.
    assert seeing.encoder == 704 * MIB + 65536 * 2 * 15 * 1152
    assert seeing.reserve - stage(KIMI, PP8).reserve == seeing.encoder
    budget = memory.plan(KIMI, PP8, RTX_PRO_6000, replace(STORY, images=True))
    assert [found.encoder > 0 for found in budget.stages] == [True] + [False] * 7
    assert stage(KIMI, PP8, images=True, chunk=32768).encoder == 704 * MIB + 131072 * 2 * 15 * 1152
    assert stage(DEEPSEEK, PP8, images=True).encoder == 0


def test_fewer_requests_need_fewer_slots() -> None:
    """What is tried has no room for requests that are no longer promised."""
    load = Load(32768, 512, running=512, graph_batch=512, decode_batch=64, held=2048)
    less = memory._serving(load, 8)
    assert (less.concurrency, less.running, less.graph_batch, less.decode_batch) == (8, 8, 8, 1)
    named = changes(KIMI, Layout(tensor=8), load)
    assert any(change.startswith("sglang_server_concurrency ") for change in named)


def test_a_proposed_context_is_one_that_the_model_has() -> None:
    load = Load(LLAMA.context * 64, 64, held=4096)
    budget = memory.plan(LLAMA, Layout(), H100, load)
    lengths = [a.load.context for a in budget.alternatives if "context_length" in a.change]
    assert lengths == [LLAMA.context]


def test_gpus_as_nodes_have_them() -> None:
    found = changes(QWEN, Layout(pipeline=3), Load(8192, 8))
    assert found[-1].endswith("on 8 GPUs")
    assert not any("on 6 GPUs" in change for change in found)


def test_a_thousand_layers_are_planned_in_a_second() -> None:
    deep = replace(KIMI, layers=KIMI.layers[1:2] * 1000)
    start = time.thread_time()
    for layout in (PP8, Layout(tensor=8), Layout(pipeline=64)):
        assert not memory.plan(deep, layout, RTX_PRO_6000, STORY).fits
    assert time.thread_time() - start < 3
