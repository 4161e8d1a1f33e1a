# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Collectives: groups, bandwidths, and what is said of a proof, on nodes as they were recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import collectives
from ansible_collections.inference.sglang.plugins.module_utils.collectives import Proof, Run
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding
from ansible_collections.inference.sglang.plugins.module_utils.gpus import Process
from ansible_collections.inference.sglang.plugins.module_utils.hardware import Bridge, GpuState, Hardware

DATA = Path(__file__).parent / "data"
MEASURED = json.loads((DATA / "measurements" / "h200-x2-nccl-2026-11-30.json").read_text())
SIZE = 256 << 20
EIGHT = tuple(range(8))


def node(name: str) -> Hardware:
    """A whole node of eight RTX PRO 6000."""
    return Hardware.from_dict(json.loads((DATA / "nodes" / f"{name}.json").read_text())["hardware"])


FIT, REDIRECTED = node("eight_rtx_pro_6000"), node("eight_rtx_pro_6000_redirected")
TWO_H200 = Hardware(
    gpus=tuple(GpuState(address=f"0000:0{i}:00.0", index=i, product="NVIDIA H200", nvlinks=(18, 18)) for i in (0, 1)),
    links={(0, 1): "NV18"},
)


def at(gb_per_second: float, *ranks: int, collective: str = "send_recv", transport: str = "P2P/CUMEM") -> Run:
    """A run that passed at this bus bandwidth."""
    factor = collectives.bus_bandwidth(collective, len(ranks), SIZE, 1.0)
    seconds = (factor / (gb_per_second * 1e9),)
    return Run(ranks=ranks, collective=collective, size=SIZE, seconds=seconds, transport=transport)


def proof(*runs: Run, hardware: Hardware = FIT, ranks: tuple[int, ...] = EIGHT, **given: Any) -> Proof:
    return Proof(
        **{"backend": "nccl", "ranks": ranks, "runs": runs, "hardware": hardware, "limits": (30, 300), **given}
    )


def found(judged: Proof) -> list[Finding]:
    return collectives.judge(judged)


def only(judged: Proof) -> Finding:
    (one,) = found(judged)
    return one


def changed(hardware: Hardware, index: int, **values: Any) -> Hardware:
    """With other facts of one GPU."""
    return replace(hardware, gpus=tuple(replace(gpu, **values) if gpu.index == index else gpu for gpu in hardware.gpus))


# Groups and bandwidths.


@pytest.mark.parametrize("count", range(2, 10))
def test_every_pair_meets_once_and_no_rank_is_in_two_pairs_of_a_round(count: int) -> None:
    rounds = collectives.rounds(count)
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(count), 2))
    assert len(rounds) == count - 1 + count % 2
    for pairs in rounds:
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(set(ranks))


ROW = (
    "   {size}     67108864     float     sum      -1   1234.5  217.44  {bus}   {wrong}   1230.1  218.22  381.9      0"
)
TEST_OUTPUT = f"""# nThread 1 nGpus 8 minBytes 268435456 maxBytes 268435456 step: 1048576(bytes) warmup iters: 1
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
{ROW.format(size=SIZE, bus=380.53, wrong=0)}
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 381.2
"""
"""In the form that nccl-tests' README shows."""


def test_bandwidth_is_what_nccl_tests_call_bus_bandwidth() -> None:
    size, seconds, wrong = collectives.parse_test(TEST_OUTPUT)
    assert (size, wrong) == (SIZE, 0)
    assert size / seconds / 1e9 == pytest.approx(217.44, rel=1e-4)
    assert collectives.bus_bandwidth("all_reduce", 8, size, seconds) / 1e9 == pytest.approx(380.53, rel=1e-4)
    assert collectives.bus_bandwidth("send_recv", 8, size, seconds) == size / seconds


def test_wrong_elements_of_nccl_tests_are_counted() -> None:
    assert collectives.parse_test(ROW.format(size=SIZE, bus="N/A", wrong=17))[2] == 17
    assert collectives.parse_test(ROW.format(size=SIZE, bus="N/A", wrong="N/A"))[2] == 0


@pytest.mark.parametrize("output", ["", "all_reduce_perf: Test NCCL failure common.cu:1279 'unhandled cuda error'\n"])
def test_output_without_a_row_is_refused_with_its_words(output: str) -> None:
    with pytest.raises(ValueError, match=r"unhandled cuda error|nothing was printed"):
        collectives.parse_test(output)


def test_transports_are_those_that_nccl_names() -> None:
    told = [case for case in MEASURED["cases"] if case["log"]]
    assert {case["name"] for case in told} >= {"default", "peer to peer off", "sockets"}
    for case in told:
        assert collectives.transports("\n".join(case["log"])) == case["groups"]["0-1"]["transport"]
    assert collectives.transports("vm:613:613 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n") == ""


@pytest.mark.parametrize(
    ("hardware", "pair", "gb_per_second"),
    [
        (TWO_H200, (0, 1), 450),
        (replace(TWO_H200, links={(0, 1): "NV9"}), (0, 1), 225),
        (changed(TWO_H200, 0, nvlinks=None), (0, 1), None),
        (changed(TWO_H200, 0, product="NVIDIA H300"), (0, 1), None),
        (FIT, (0, 1), 64),
        (FIT, (0, 7), 64),
        (changed(FIT, 7, pcie_width=8), (0, 7), 32),
        (changed(FIT, 7, pcie_generation_max=4), (0, 7), 32),
        (changed(FIT, 7, pcie_generation_max=None), (0, 7), None),
        (replace(FIT, links={}), (0, 1), None),
        (FIT, (7, 8), None),
    ],
)
def test_a_link_is_expected_to_be_as_fast_as_specified(
    hardware: Hardware, pair: tuple[int, int], gb_per_second: float | None
) -> None:
    expected = collectives.expected(hardware, pair)
    assert expected == (gb_per_second and gb_per_second * 1e9)


# Hangs: field case C18.


def c18(hardware: Hardware, **given: Any) -> Proof:
    """Two ranks hang, eight complete."""
    pairs = [replace(at(1, *pair), collective="all_reduce", outcome="hung", seconds=()) for pair in [(0, 1), (2, 3)]]
    whole = [at(20, *EIGHT, collective=one) for one in collectives.COLLECTIVES]
    return proof(*pairs, *whole, hardware=hardware, **given)


def test_a_hang_of_two_is_told_though_eight_complete() -> None:
    hung = only(c18(REDIRECTED))
    assert (hung.id, hung.severity) == ("collectives.hung", "error")
    assert "pair 0-1 (NODE); pair 2-3 (NODE), though that of all 8 did" in hung.seen
    assert "all_reduce did not end within 30 s over P2P/CUMEM" in hung.seen
    assert "0000:00:01.1 (SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+)" in hung.seen
    assert "no iommu=pt" in hung.seen
    assert (
        hung.remedy == "Switch ACS off in the firmware, or boot with iommu=pt, or set sglang_server_p2p_fallback: true"
    )


def test_that_all_complete_is_not_said_where_they_do_not() -> None:
    judged = c18(REDIRECTED)
    unfinished = proof(*judged.runs[:2], hardware=REDIRECTED)
    assert "though" not in only(unfinished).seen


@pytest.mark.parametrize(
    ("hardware", "environment", "suspected", "remedy"),
    [
        (FIT, {}, "the node's facts say nothing against it", "Read NCCL's words in the log, or set sglang_server_p2p"),
        (FIT, {"NCCL_P2P_LEVEL": "SYS"}, "NCCL_P2P_LEVEL=SYS", "Set sglang_server_nccl_p2p_level lower, or set"),
        (
            replace(FIT, peers={(0, 1): ("CNS", "OK"), (2, 3): ("CNS", "OK")}),
            {},
            "topo -p2p says CNS/OK of pair 0-1",
            "Look up what that means",
        ),
        (replace(FIT, kernel=REDIRECTED.kernel), {}, "the IOMMU translates", "Boot with iommu=pt, or set sglang"),
        (FIT, {"NCCL_P2P_DISABLE": "1"}, "not peer to peer", "Look at the free space of /dev/shm"),
    ],
)
def test_what_a_hang_over_pcie_comes_from(
    hardware: Hardware, environment: dict[str, str], suspected: str, remedy: str
) -> None:
    judged = c18(hardware, environment=environment)
    hung = next(finding for finding in found(judged) if finding.id == "collectives.hung")
    assert suspected in hung.seen
    assert hung.remedy.startswith(remedy)
    assert ("p2p_fallback" in hung.remedy) == ("NCCL_P2P_DISABLE" not in environment)


def hung_pair(**given: Any) -> Run:
    return replace(at(1, 0, 1), outcome="hung", seconds=(), **given)


@pytest.mark.parametrize(
    ("facts", "suspected"),
    [
        ({}, "NVLink, though nvidia-smi says nothing against it"),
        ({"nvlinks": (17, 18)}, "17 of 18 NVLinks of GPU 1 are up"),
        ({"fabric": ("In Progress", "N/A")}, "the fabric of GPU 1 is In Progress and N/A"),
        ({"fabric": ("Completed", "Success")}, "NVLink, though nvidia-smi says nothing against it"),
    ],
)
def test_what_a_hang_over_nvlink_comes_from(facts: dict[str, Any], suspected: str) -> None:
    judged = proof(hung_pair(), hardware=changed(TWO_H200, 1, **facts), ranks=(0, 1))
    assert only(judged).seen.endswith(f"Suspected: {suspected}")


def test_a_stopped_process_and_one_in_the_kernel_are_named() -> None:
    stopped = only(proof(hung_pair(states={0: "R", 1: "T"}), hardware=REDIRECTED))
    assert "Suspected: the process for GPU 1 was stopped" in stopped.seen
    assert "ACS" not in stopped.seen
    waiting = only(proof(hung_pair(states={0: "D", 1: "S"}), hardware=REDIRECTED))
    assert "the process for GPU 0 waits in the kernel" in waiting.seen


def test_processes_without_gpus_are_called_ranks() -> None:
    run = replace(hung_pair(), transport="")
    hung = only(proof(run, hardware=Hardware(), ranks=(0, 1), backend="gloo", log="/records/1.log"))
    assert "(log: /records/1.log)" in hung.seen
    stopped = only(proof(replace(run, states={0: "T"}), hardware=Hardware(), ranks=(0, 1), backend="gloo"))
    assert "the process for rank 0 was stopped" in stopped.seen


# The other rules.


def test_a_process_that_does_not_start_is_told_with_its_words() -> None:
    dead = Run(ranks=(3,), collective="start", outcome="failed", text="RuntimeError: no CUDA-capable device")
    assert "The process for GPU 3 did not start: RuntimeError: no CUDA" in only(proof(dead)).seen
    late = only(proof(replace(dead, outcome="hung", text="", states={3: "D"})))
    assert late.seen == "The process for GPU 3 did not start in time (state D)"


def test_wrong_sums_name_what_changes_data() -> None:
    run = replace(at(20, 0, 1, collective="all_reduce"), outcome="wrong", wrong=5, seconds=())
    wrong = only(proof(run, hardware=REDIRECTED))
    assert (wrong.id, wrong.severity) == ("collectives.wrong", "error")
    assert "5 wrong elements: pair 0-1 (NODE)" in wrong.seen
    assert "iommu=pt" in wrong.remedy


def test_failures_of_the_same_words_are_one_finding() -> None:
    runs = [Run(ranks=pair, collective="join", outcome="failed", text="ncclSystemError") for pair in [(0, 1), (2, 3)]]
    failed = only(proof(*runs))
    assert failed.seen == "Making the communicator failed: pair 0-1 (PIX); pair 2-3 (PIX): ncclSystemError"


def test_what_was_not_reached_is_not_proven() -> None:
    runs = [Run(ranks=(0, 1), collective=one, outcome="unreached") for one in collectives.COLLECTIVES]
    left = only(proof(*runs))
    assert (left.id, left.severity) == ("collectives.unreached", "error")
    assert left.seen == "2 collectives were not tried to the end within 300 s: GPUs 0, 1"


def test_a_process_that_does_not_end_is_an_error() -> None:
    left = only(proof(at(50, 0, 1), left=(4711,)))
    assert (left.id, left.severity) == ("collectives.remaining", "error")
    assert "4711" in left.seen


@pytest.mark.parametrize(
    ("run", "hardware", "slow"),
    [
        (at(54, 0, 1), FIT, False),  # luke, 8 on switches: local-inference-lab/rtx6kpro, hardware/pcie-bandwidth.md
        (at(39, 0, 7), FIT, False),  # orangezed, between sockets
        (at(22.2, *EIGHT, collective="all_reduce"), FIT, False),  # Festr, all eight
        (at(13.5, 0, 1), FIT, True),  # hardware/collapse-report.md
        (at(13.5, 0, 7), FIT, True),
        (at(13.5, *EIGHT, collective="all_reduce"), FIT, True),
        (at(13.5, 0, 1, transport="SHM/direct/direct"), replace(FIT, links={(0, 1): "PHB"}), False),
        (at(295.9, 0, 1), TWO_H200, False),
        (at(200, 0, 1), TWO_H200, True),
        (at(1, 0, 1), replace(FIT, links={}), False),
    ],
)
def test_a_slow_link_is_a_warning(run: Run, hardware: Hardware, slow: bool) -> None:
    findings = found(proof(run, hardware=hardware))
    assert [(finding.id, finding.severity) for finding in findings] == [("collectives.slow", "warning")] * slow


def test_nothing_is_expected_of_the_nodes_memory() -> None:
    assert found(proof(at(13.5, 0, 1), environment={"NCCL_P2P_DISABLE": "1"})) == []
    assert found(proof(at(13.5, 0, 1), environment={"NCCL_P2P_LEVEL": "LOC"})) == []


def test_a_slow_link_says_why_where_the_facts_tell() -> None:
    narrow = changed(FIT, 1, pcie_width=8)
    assert "GPU 1 has 8 of 16 lanes" in only(proof(at(13.5, 0, 1), hardware=narrow)).remedy
    redirected = changed(FIT, 1, bridges=(Bridge(address="0000:00:01.1", acs=("ReqRedir",)),))
    assert "ACS" in only(proof(at(13.5, 0, 1), hardware=redirected)).remedy
    several = only(proof(at(13.5, 0, 1), at(12, 2, 3)))
    assert "pair 0-1 (PIX) send_recv 13.5 GB/s; pair 2-3 (PIX) send_recv 12.0 GB/s" in several.seen


def test_a_pair_unlike_the_others_of_its_class_is_named() -> None:
    runs = [at(54, 0, 1), at(54, 2, 3), at(54, 4, 5), at(33, 6, 7)]
    odd = only(proof(*runs))
    assert (odd.id, odd.severity) == ("collectives.odd", "warning")
    assert "33.0 GB/s, and 54.0 between other GPUs that are PIX apart: pair 6-7" in odd.seen
    assert found(proof(*runs[:1], runs[3])) == [], "two pairs do not tell which of them is the odd one"


@pytest.mark.parametrize(
    ("pair", "environment", "told"),
    [
        ((0, 1), {}, True),
        ((0, 7), {}, False),
        ((0, 7), {"NCCL_P2P_LEVEL": "SYS"}, True),
        ((0, 2), {"NCCL_P2P_LEVEL": "PHB"}, True),
        ((0, 7), {"NCCL_P2P_LEVEL": "PHB"}, False),
        ((0, 1), {"NCCL_P2P_LEVEL": "NVL"}, False),
        ((0, 1), {"NCCL_P2P_DISABLE": "1"}, False),
    ],
)
def test_a_way_through_memory_is_told_where_there_is_a_direct_one(
    pair: tuple[int, int], environment: dict[str, str], told: bool
) -> None:
    run = at(24, *pair, transport="SHM/direct/direct")
    findings = found(proof(run, environment=environment))
    assert [finding.id for finding in findings] == ["collectives.detour"] * told


# What two real GPUs gave.


@pytest.mark.parametrize("case", MEASURED["cases"], ids=lambda case: case["name"])
def test_two_h200_are_judged_as_they_were(case: dict[str, Any]) -> None:
    """docs/measurements.md, "NCCL proof"."""
    for sitting in case["proofs"]:
        runs = [
            Run(
                **{
                    **run,
                    "ranks": tuple(run["ranks"]),
                    "seconds": tuple(run["seconds"]),
                    "states": {int(rank): state for rank, state in run["states"].items()},
                }
            )
            for run in sitting["runs"]
        ]
        judged = proof(*runs, hardware=TWO_H200, ranks=(0, 1), environment=case["environment"])
        assert sorted({finding.id for finding in found(judged)}) == sitting["findings"]


# Records.


def identified(**given: Any) -> str:
    asked: dict[str, Any] = {"backend": "nccl", "ranks": [0, 1], "versions": {"torch": "2.11.0"}, "environment": {}}
    return collectives.digest(collectives.identity(**{**asked, "hardware": FIT, "sizes": [SIZE], **given}))


@pytest.mark.parametrize(
    "given",
    [
        {"ranks": [0, 2]},
        {"backend": "gloo"},
        {"versions": {"torch": "2.13.0"}},
        {"environment": {"NCCL_P2P_DISABLE": "1"}},
        {"sizes": [4]},
        {"hardware": changed(FIT, 1, product="NVIDIA L40S")},
        {"hardware": replace(FIT, driver=replace(FIT.driver, version="595.1"))},
        {"hardware": replace(FIT, links={**FIT.links, (0, 1): "SYS"})},
        {"hardware": replace(FIT, kernel=REDIRECTED.kernel)},
        {"hardware": changed(FIT, 1, bridges=(Bridge(address="0000:00:01.1", acs=("ReqRedir",)),))},
    ],
    ids="-".join,
)
def test_what_a_proof_depends_on_changes_its_digest(given: dict[str, Any]) -> None:
    assert identified(**given) != identified()


@pytest.mark.parametrize(
    "hardware",
    [
        changed(FIT, 0, power_draw=300.0, pcie_generation=5, processes=(Process(1, "python", 0),)),
        changed(FIT, 7, product="NVIDIA L40S"),
        replace(FIT, links={**FIT.links, (0, 7): "NODE"}),
    ],
)
def test_what_it_does_not_depend_on_does_not(hardware: Hardware) -> None:
    assert identified(hardware=hardware) == identified()


def test_a_node_without_gpus_has_one_digest() -> None:
    assert identified(backend="gloo", hardware=FIT) == identified(backend="gloo", hardware=Hardware())


def test_only_what_collectives_read_of_the_environment_counts() -> None:
    given = {
        "NCCL_P2P_LEVEL": "SYS",
        "TORCH_NCCL_BLOCKING_WAIT": 1,
        "CUDA_VISIBLE_DEVICES": "0,1",
        "HOME": "/",
        "X_NCCL_Y": 1,
    }
    assert collectives.nccl_variables(given) == {
        "NCCL_P2P_LEVEL": "SYS",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }


@pytest.mark.parametrize(
    ("visible", "layout", "chosen"),
    [
        (None, {"gpus": 8}, list(EIGHT)),
        (None, {"gpus": 2}, [0, 1]),
        ("6, 7", {"gpus": 2}, [6, 7]),
        ("4,5,6,7", {"gpus": 2}, [4, 5]),
        ("6,9", None, [6]),
        (None, {}, list(EIGHT)),
        ("", {}, []),
        ("MIG-0a1b", {}, None),
        ("0,GPU-0a1b", {}, None),
    ],
)
def test_the_gpus_are_those_of_the_instance(visible: str | None, layout: Any, chosen: list[int] | None) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": visible} if visible is not None else {}
    assert collectives.chosen({"environment": environment, "layout": layout}, EIGHT) == chosen


def test_base_and_step_choose_among_the_visible_gpus() -> None:
    plan = {
        "environment": {"CUDA_VISIBLE_DEVICES": "1,2,3,4,5"},
        "arguments": [["--enable-metrics"], ["--base-gpu-id", "1"], ["--gpu-id-step", "2"]],
        "layout": {"gpus": 2},
    }
    assert collectives.chosen(plan, EIGHT) == [2, 4]


def test_gpus_that_are_held_are_left_alone() -> None:
    busy = changed(FIT, 1, processes=(Process(41, "python3", 0, unit="sglang-kimi.service"), Process(42, "train", 0)))
    assert collectives.held(busy, [0, 2], {}) is None
    held = collectives.held(busy, [0, 1], {})
    assert held is not None
    assert held.severity == "info"
    assert held.seen.startswith("sglang-kimi.service, process 42 (train) hold GPUs")
    assert held.seen.endswith("no proof of these is recorded")
    before = collectives.held(busy, [1], {"when": "2026-11-30T06:00:00+00:00", "passed": False})
    assert before is not None
    assert before.seen.endswith("the last proof, of 2026-11-30T06:00:00+00:00, failed")


def test_a_record_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    for content in ("", "[1]", '{"passed": tr'):
        (tmp_path / "record.json").write_text(content)
        assert collectives.read_record(tmp_path / "record.json") == {}
    assert collectives.read_record(tmp_path / "absent.json") == {}


def test_the_summary_has_each_group_with_its_link_and_speed() -> None:
    start = Run(ranks=(0,), collective="start")
    failed = Run(ranks=(2, 3), collective="join", outcome="failed", text="no")
    told = collectives.summary(proof(start, at(54, 0, 1), at(20, *EIGHT, collective="all_reduce"), failed))
    assert told["0-1"] == {
        "link": "PIX",
        "transport": "P2P/CUMEM",
        "send_recv": {"outcome": "passed", "bytes": SIZE, "gb_per_second": 54.0, "range": [54.0, 54.0]},
    }
    assert told["0-1-2-3-4-5-6-7"]["all_reduce"]["gb_per_second"] == 20.0
    assert told["2-3"] == {"link": "PIX", "join": {"outcome": "failed", "text": "no"}}
    assert "0" not in told
