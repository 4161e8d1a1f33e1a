# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Estimates of decode speed against what GPUs and published rows said, and what must hold for any layout."""

from __future__ import annotations

import itertools
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import shapes
from ansible_collections.inference.sglang.plugins.module_utils import estimates, models
from ansible_collections.inference.sglang.plugins.module_utils.estimates import Estimate, EstimateError, Work, roofline
from ansible_collections.inference.sglang.plugins.module_utils.gpus import CARDS, Card
from ansible_collections.inference.sglang.plugins.module_utils.memory import Layout, rank_bytes
from ansible_collections.inference.sglang.plugins.module_utils.models import Shape

RTX_PRO_6000, H200 = CARDS["rtx_pro_6000_server"], CARDS["h200"]
TP8, EP8, PP8 = Layout(tensor=8), Layout(tensor=8, expert=8), Layout(pipeline=8)
DP8 = Layout(tensor=8, expert=8, attention_data=8)
MIXED = Layout(tensor=2, pipeline=4, expert=2)
TP2, EP2, PP2 = Layout(tensor=2), Layout(tensor=2, expert=2), Layout(pipeline=2)


def shape(name: str, **changes: Any) -> Shape:
    return models.read(shapes.config(name) | changes)[0]


KIMI, QWEN, LLAMA = shape("kimi-k2.5"), shape("qwen3-235b-a22b"), shape("llama-3.1-8b")
RUNS = json.loads((Path(__file__).parent / "data" / "measurements" / "h200-x2-2026-11-30.json").read_text())
DUMMY = models.read(RUNS["model"])[0]
# Dummy weights send every token to the same eight experts: their values lie within 0.001 of 0, so that scores differ by
# a hundredth of what the router's biases do (initialize_dummy_weights in srt/model_loader/weight_utils.py of
# 0.5.12.post1).
READ = models.read(RUNS["model"] | {"n_routed_experts": 8})[0]


def kimi(layout: Layout, work: Work) -> Estimate:
    return roofline(KIMI, layout, RTX_PRO_6000, work)


# Kimi K2.6 in INT4 on eight RTX PRO 6000, decode of all requests, vLLM at tensor size 8, no prompt to speak of, no
# multi-token prediction: local-inference-lab/rtx6kpro, 2026-05-15.
PUBLISHED = {1: 92.4, 2: 151.3, 4: 239.5, 8: 350.9, 16: 636.2, 32: 957.7, 64: 1497.3, 128: 2222.6}


@pytest.mark.parametrize("concurrency", PUBLISHED)
def test_published_rows(concurrency: int) -> None:
    estimate = kimi(TP8, Work(concurrency, input_tokens=1))
    # The errors are -12, -2, +7, +15, -7, -14, -22 and -19 %.
    assert concurrency * estimate.per_request == pytest.approx(PUBLISHED[concurrency], rel=0.225)
    assert estimate.source == "roofline"


def test_published_rows_with_their_prompts() -> None:
    for concurrency in (1, 8):
        tokens = kimi(TP8, Work(concurrency)).tokens_per_second
        assert tokens == pytest.approx(PUBLISHED[concurrency], rel=0.25)


def test_the_order_of_layouts_at_equal_concurrency() -> None:
    for concurrency in PUBLISHED:
        tensor, expert, pipeline = (kimi(layout, Work(concurrency)) for layout in (TP8, EP8, PP8))
        assert tensor.tokens_per_second > expert.tokens_per_second > pipeline.tokens_per_second
        assert tensor.per_request > expert.per_request > pipeline.per_request


def test_one_stream_through_eight_stages() -> None:
    """All active weights are read by one card after the other: no more than 55 tokens a second on this one."""
    for depth, graphs in itertools.product((0, 1, 8), (True, False)):
        assert kimi(PP8, Work(1, depth=depth, graphs=graphs)).per_request < 55
    estimate = kimi(PP8, Work(1))
    assert estimate.read == pytest.approx(sum(rank_bytes(KIMI, PP8, 1)), rel=0.001)
    assert estimate.per_request > 20


# docs/measurements.md, two H200: tokens a second of output at each of LEVELS, one run each, and the largest error of
# the estimates in per cent.
SINGLE_RUNS = {
    "graphs off": (Work(1, graphs=False, micro_batch=32), (13.6, 97.8, 362.6, 761.7), 16),
    "async depth 2": (Work(1, depth=2), (143.5, 690.6, 2804.5, 4085.6), 31),
}
LEVELS = (1, 8, 32, 64)
LARGEST_ERROR = {"PP2": 5, "TP2": 2, "TP2 EP2": 8}


def layout(row: dict[str, Any]) -> Layout:
    return Layout(row["tensor_parallel"], row["pipeline_parallel"], row["expert_parallel"])


@pytest.mark.parametrize("name", SINGLE_RUNS)
def test_single_runs(name: str) -> None:
    work, rows, error = SINGLE_RUNS[name]
    for level, tokens in zip(LEVELS, rows, strict=True):
        estimate = roofline(READ, PP2, H200, replace(work, concurrency=level))
        assert estimate.tokens_per_second == pytest.approx(tokens, rel=error / 100)


@pytest.mark.parametrize("row", RUNS["rows"], ids=lambda row: row["name"])
def test_medians_of_five_runs(row: dict[str, Any]) -> None:
    for point in row["points"]:
        work = Work(point["concurrency"], micro_batch=point.get("micro_batch", 0))
        estimate = roofline(READ, layout(row), H200, work)
        median = statistics.median(point["tokens_per_second"])
        assert estimate.tokens_per_second == pytest.approx(median, rel=LARGEST_ERROR[row["name"]] / 100)
        if decode := point.get("decode_tokens_per_second"):
            assert work.concurrency * estimate.per_request == pytest.approx(decode, rel=0.08)


def test_the_layout_that_is_chosen_for_two_gpus_is_the_fastest_one_measured() -> None:
    for level in LEVELS:
        measured = {
            layout(row): max(
                statistics.median(point["tokens_per_second"])
                for point in row["points"]
                if point["concurrency"] == level
            )
            for row in RUNS["rows"]
        }
        for model in (DUMMY, READ):
            expected = {case: roofline(model, case, H200, Work(level)).tokens_per_second for case in measured}
            chosen = max(measured, key=lambda case: expected[case])
            assert measured[chosen] >= 0.9 * max(measured.values())


CASES = {f"kimi {layout}": (KIMI, layout, RTX_PRO_6000) for layout in (TP8, EP8, PP8, DP8, MIXED)}
CASES |= {f"dummy {layout}": (DUMMY, layout, H200) for layout in (TP2, EP2, PP2)}
CASES |= {"llama": (LLAMA, Layout(), H200), "qwen": (QWEN, EP8, H200)}
LOADS = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 64, 65, 100, 128, 500]


@pytest.mark.parametrize("case", CASES)
def test_more_requests_get_more_together_and_less_each(case: str) -> None:
    model, layout, card = CASES[case]
    full = [Work(8 * slots, 1, micro_batch=8) for slots in range(1, 12)]
    for works in ([Work(load, 1) for load in LOADS], full):
        found = [roofline(model, layout, card, work) for work in works]
        for less, more in itertools.pairwise(found):
            assert more.tokens_per_second >= less.tokens_per_second * (1 - 1e-9)
            assert more.per_request <= less.per_request * (1 + 1e-9)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("load", [1, 8, 100])
def test_what_never_makes_it_slower(case: str, load: int) -> None:
    model, layout, card = CASES[case]

    def tokens(card: Card = card, **changes: Any) -> float:
        return roofline(model, layout, card, Work(load, **changes)).tokens_per_second

    for better in ("bandwidth", "link_bandwidth", "flops"):
        assert tokens(replace(card, **{better: 2 * getattr(card, better)})) >= tokens()
    # The prompts' passes, where the host allows, and the decode steps themselves, where reading is most of them.
    assert tokens(replace(card, bandwidth=card.bandwidth // 4)) < tokens()
    assert tokens(prefill_graphs=True) >= tokens()
    assert tokens(graphs=False) < tokens()
    assert tokens(kv_type="fp8_e4m3") >= tokens()
    assert tokens(input_tokens=8192) <= tokens()


def test_experts_that_are_not_divided_evenly() -> None:
    one, most = (kimi(EP8, Work(load)).read / kimi(TP8, Work(load)).read for load in (1, 2000))
    # Of eight experts, the rank with most holds two or three: twice the bytes and more of attention beside them.
    assert 1.3 < one < 2
    assert most == pytest.approx(1, abs=0.001)
    # Two groups of four ranks each: the one with more has five or six of eight.
    two = Layout(tensor=8, expert=2)
    routed = sum(layer.routed.bytes for layer in KIMI.layers) * 8 / KIMI.experts / 8
    assert 0.2 * routed < kimi(two, Work(1)).read - kimi(TP8, Work(1)).read < 0.5 * routed
    assert roofline(LLAMA, Layout(tensor=2, expert=2), H200, Work(1)).read > 0


def test_attention_data_ranks_read_their_own_requests_only() -> None:
    long = Work(64, input_tokens=100000)
    assert kimi(DP8, long).read < 0.5 * kimi(EP8, long).read
    # One request lies on one rank, whatever there is for others; its attention is not divided.
    assert kimi(DP8, Work(1)).read > kimi(EP8, Work(1)).read
    # Tokens are gathered and scattered, in two turns, instead of being reduced twice.
    assert kimi(DP8, Work(1)).link_time == pytest.approx(kimi(EP8, Work(1)).link_time, rel=0.05)
    assert kimi(DP8, Work(512)).link_time < 0.6 * kimi(EP8, Work(512)).link_time
    # Half of the ranks reduce half of the requests, then all of them exchange all.
    halves = replace(DP8, attention_data=2)
    assert kimi(DP8, Work(512)).link_time < kimi(halves, Work(512)).link_time < 0.8 * kimi(EP8, Work(512)).link_time


def test_links() -> None:
    slow = replace(RTX_PRO_6000, link="nvlink")
    # 122 all-reduces and the gathered logits, each of at least 8 ranks' latency.
    assert kimi(TP8, Work(1)).link_time > 123 * 8 * 3.2e-6
    assert roofline(KIMI, TP8, slow, Work(1)).link_time < 0.3 * kimi(TP8, Work(1)).link_time
    # Seven hand-overs of two ranks.
    assert 7 * 2 * 3.2e-6 < kimi(PP8, Work(1)).link_time < 0.1e-3
    assert roofline(LLAMA, Layout(), H200, Work(1)).link_time == 0


@pytest.mark.parametrize("work", [Work(1), Work(8), Work(64, micro_batch=8), Work(9, depth=1)], ids=str)
def test_the_parts_are_not_more_than_the_whole(work: Work) -> None:
    for model, layout, card in CASES.values():
        estimate = roofline(model, layout, card, work)
        assert min(estimate.read_time, estimate.overhead) > 0
        parts = estimate.read_time + estimate.link_time + estimate.overhead
        assert parts <= estimate.time_per_token * (1 + 1e-9)
        if layout.pipeline == 1:
            assert parts == pytest.approx(estimate.time_per_token)


# The loop of 0.5.12.post1 and 0.5.23 (event_loop_pp in srt/managers/scheduler_pp_mixin.py), run with eight threads as
# ranks and delays of 20 ms as stages: slots of one request each, tokens a second.
@pytest.mark.parametrize(
    ("requests", "depth", "tokens"),
    [
        *((requests, 0, tokens) for requests, tokens in ((1, 5.75), (4, 23.3), (8, 46))),
        *((8, depth, tokens) for depth, tokens in ((1, 44.25), (2, 39.5), (4, 33), (8, 28))),
        *((8 + depth, depth, tokens) for depth, tokens in ((1, 49.7), (2, 50), (8, 48.75))),
        (1, 8, 6.0),
    ],
)
def test_empty_slots_cost(requests: int, depth: int, tokens: float) -> None:
    time = estimates.token_time([0.02] * 8, [0.001] * 8, PP8, Work(requests, depth=depth))
    assert requests / time == pytest.approx(tokens, rel=0.13)


def test_slots() -> None:
    def found(layout: Layout, work: Work) -> tuple[int, int, int, float]:
        return work.slots(layout), work.busy_slots(layout), work.running(layout), work.batch(layout)

    assert found(TP8, Work(12, depth=4, micro_batch=2)) == (1, 1, 12, 12)
    assert found(PP8, Work(1)) == (8, 1, 1, 1)
    assert found(PP8, Work(12)) == (8, 8, 12, 1.5)
    assert found(PP8, Work(12, depth=8)) == (16, 12, 12, 1)
    assert found(PP8, Work(64, depth=8)) == (16, 16, 64, 4)
    # Eight that come at once share a slot that has room for them.
    assert found(PP8, Work(8, micro_batch=8)) == (8, 1, 8, 8)
    assert found(PP8, Work(9, micro_batch=8)) == (8, 2, 9, 8)
    assert found(PP8, Work(100, micro_batch=8)) == (8, 8, 64, 8)
    # Those that wait for a slot add nothing.
    full, more = (kimi(PP8, Work(load, micro_batch=8)) for load in (64, 100))
    assert more == full


def test_an_uneven_pipeline_is_as_slow_as_its_longest_stage() -> None:
    even = Layout(pipeline=4, partition=(15, 15, 15, 16))
    uneven = replace(even, partition=(9, 9, 9, 34))
    assert kimi(uneven, Work(64)).time_per_token > 1.5 * kimi(even, Work(64)).time_per_token
    assert kimi(uneven, Work(1)).time_per_token == pytest.approx(kimi(even, Work(1)).time_per_token, rel=0.01)


def test_time_to_first_token() -> None:
    short, long, longer = (kimi(TP8, Work(1, tokens, prefill_graphs=True)) for tokens in (128, 8192, 81920))
    assert 0.02 < short.time_to_first_token < 0.3
    assert longer.time_to_first_token == pytest.approx(10 * long.time_to_first_token)
    # Without graphs the host starts every kernel of 61 layers.
    assert kimi(TP8, Work(1)).time_to_first_token >= 61 * estimates.LAUNCH > short.time_to_first_token
    # Ten chunks follow each other through eight stages.
    chunks = [kimi(PP8, Work(1, tokens)).time_to_first_token for tokens in (8192, 81920)]
    assert 2 < chunks[1] / chunks[0] < 3


def test_what_is_not_known() -> None:
    for name in ("bandwidth", "flops", "link_bandwidth"):
        card = replace(RTX_PRO_6000, **{name: 0})
        with pytest.raises(EstimateError, match=f"rtx_pro_6000_server has no known {name}"):
            roofline(KIMI, TP8, card, Work(1))
    assert roofline(LLAMA, Layout(), replace(H200, link_bandwidth=0), Work(1)).per_request > 0
    with pytest.raises(EstimateError, match=r"estimate\.work"):
        roofline(KIMI, TP8, RTX_PRO_6000, Work(0))
