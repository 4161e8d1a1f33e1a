# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What nvidia-smi tells, from recorded texts and from those changed as drivers and broken GPUs change them."""

from __future__ import annotations

import re

import pytest
import recorded
from ansible_collections.inference.sglang.plugins.module_utils import nvidia_smi
from ansible_collections.inference.sglang.plugins.module_utils.gpus import MIB
from ansible_collections.inference.sglang.plugins.module_utils.nvidia_smi import Smi, Told

QUERY, TOPOLOGY, CAPABILITY = (
    "nvidia-smi -q -x",
    "nvidia-smi topo -m",
    "nvidia-smi --query-gpu=compute_cap --format=csv,noheader",
)
READS, WRITES = "nvidia-smi topo -p2p r", "nvidia-smi topo -p2p w"
H200 = recorded.load("two_h200")["answers"]
XML = (recorded.DATA / "gpus/two_h200.xml").read_text()
EIGHT = (recorded.DATA / "gpus/eight_rtx_pro_6000_orphans.xml").read_text()


def tell(answers: dict[str, str], asked: list[str] | None = None) -> Told:
    return nvidia_smi.tell(Smi(recorded.ask(answers, recorded.DATA, asked)), lambda pid: (f"{pid}.service", ""))


def table(count: int, **cells: str) -> str:
    """A p2p matrix in which all is OK but for ``r0c1``."""
    rows = [
        " \t".join([f" GPU{row}", *("X" if row == n else cells.get(f"r{row}c{n}", "OK") for n in range(count))])
        for row in range(count)
    ]
    return "\n".join([" \t\x1b[4m" + "\t".join(f"GPU{n}" for n in range(count)) + "\t\x1b[0m", *rows, "", "Legend:"])


def test_two_h200() -> None:
    told = tell(H200)
    assert (told.driver, told.cuda, told.complaint) == ("580.159.04", "13.0", "")
    assert (told.links, told.peers) == ({(0, 1): "NV18"}, {(0, 1): ("OK", "OK")})
    first, second = told.gpus
    assert (first.address, first.index, first.product) == ("0000:00:06.0", 0, "NVIDIA H200")
    assert (first.architecture, first.capability, first.memory) == ("hopper", 90, 143771 * MIB)
    assert (second.power_draw, second.power_limit, second.power_default) == (118.22, 700, 700)
    assert (second.power_min, second.power_max) == (200, 700)
    assert (first.persistence, first.ecc, first.mig, first.utilization) == (True, True, False, 0)
    assert (first.pcie_generation, first.pcie_generation_max, first.pcie_width, first.pcie_width_max) == (5, 5, 16, 16)
    assert (first.nvlinks, first.fabric) == ((18, 18), ("Completed", "Success"))
    assert [(process.pid, process.unit) for process in second.processes] == [(591, "591.service")]


def test_eight_cards_on_pcie() -> None:
    told = tell({QUERY: EIGHT, TOPOLOGY: "@gpus/eight_pcie_two_sockets.txt", READS: table(8), WRITES: table(8)})
    assert [gpu.address for gpu in told.gpus][4:] == ["0000:81:00.0", "0000:a1:00.0", "0000:c1:00.0", "0000:e1:00.0"]
    assert {gpu.architecture for gpu in told.gpus} == {"blackwell"}
    assert {gpu.capability for gpu in told.gpus} == {120}
    assert (len(told.links), len(told.peers), {gpu.nvlinks for gpu in told.gpus}) == (28, 28, {None})
    # The shape has no fabric ("N/A"), no ECC and no persistence mode.
    assert {(gpu.fabric, gpu.ecc, gpu.persistence) for gpu in told.gpus} == {(("", ""), None, None)}


def test_one_gpu_has_no_neighbours() -> None:
    one = re.sub(r"(?s)(</gpu>).*</gpu>", r"\1", XML).replace("<attached_gpus>2", "<attached_gpus>1")
    asked: list[str] = []
    told = tell({QUERY: one}, asked)
    assert (len(told.gpus), told.links, told.peers) == (1, {}, {})
    assert not [command for command in asked if "topo" in command]


def test_mixed_cards_have_each_their_own() -> None:
    other = XML[XML.rindex("<gpu id") :].replace("NVIDIA H200", "NVIDIA RTX 4000 Ada Generation")
    other = other.replace("Hopper", "Ada Lovelace").replace("143771 MiB", "20475 MiB")
    mixed = XML[: XML.rindex("<gpu id")] + other
    told = tell({**H200, QUERY: mixed, CAPABILITY: "9.0\n8.9\n"})
    assert [(gpu.architecture, gpu.capability) for gpu in told.gpus] == [("hopper", 90), ("ada", 89)]
    assert [gpu.memory for gpu in told.gpus] == [143771 * MIB, 20475 * MIB]
    assert tell({**H200, QUERY: mixed}).gpus[1].capability is None


@pytest.mark.parametrize(
    "nothing",
    ["N/A", "[N/A]", "Unknown Error", "[Unknown Error]", "ERR!", "[Not Supported]", "Not Supported", "", "GPU is lost"],
)
def test_a_gpu_that_does_not_know(nothing: str) -> None:
    wanted = (
        "product_architecture|persistence_mode|current_ecc|current_mig|gpu_util|total|state|status|max_link_gen|"
        "current_link_gen|max_link_width|current_link_width|instant_power_draw|current_power_limit|default_power_limit|"
        "min_power_limit|max_power_limit|cuda_version|driver_version"
    )
    told = tell({**H200, QUERY: re.sub(rf"<({wanted})>[^<]*<", rf"<\1>{nothing}<", XML)})
    gpu = told.gpus[0]
    names = (gpu.architecture, *gpu.fabric, told.cuda, told.driver)
    assert names == ("",) * 5
    numbers = [gpu.memory, gpu.utilization, gpu.persistence, gpu.ecc, gpu.mig, gpu.pcie_generation]
    numbers += [gpu.pcie_generation_max, gpu.pcie_width, gpu.pcie_width_max]
    numbers += [gpu.power_draw, gpu.power_limit, gpu.power_default, gpu.power_min, gpu.power_max]
    assert numbers == [None] * 14
    assert (gpu.product, gpu.capability) == ("NVIDIA H200", 90)


@pytest.mark.parametrize("readings", ["gpu_power_readings", "power_readings"])
def test_power_by_the_names_of_older_drivers(readings: str) -> None:
    older = XML.replace("instant_power_draw", "power_draw").replace("current_power_limit", "power_limit")
    gpu = tell({**H200, QUERY: older.replace("gpu_power_readings", readings)}).gpus[0]
    limits = (gpu.power_limit, gpu.power_default, gpu.power_min, gpu.power_max)
    assert (gpu.power_draw, *limits) == (78.58, 700, 700, 200, 700)


def test_a_libcuda_that_is_not_found_supports_no_cuda() -> None:
    assert tell({**H200, QUERY: XML.replace(">13.0<", ">Not Found<")}).cuda == ""


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (
            "!nvidia-smi -q -x ended with status 18: Failed to initialize NVML: Driver/library version mismatch",
            "nvidia-smi -q -x ended with status 18: Failed to initialize NVML: Driver/library version mismatch",
        ),
        # An error with status 0.
        (
            "Failed to initialize NVML: Unknown Error\n",
            "nvidia-smi -q -x printed 'Failed to initialize NVML: Unknown Error'",
        ),
        (XML[: len(XML) // 2], "nvidia-smi -q -x printed XML that breaks off"),
        (XML.replace("<attached_gpus>2", "<attached_gpus>3"), "nvidia-smi -q -x counts 3 GPUs and describes 2"),
        ("", "nvidia-smi -q -x printed nothing"),
    ],
)
def test_a_driver_that_answers_nothing(answer: str, complaint: str) -> None:
    asked: list[str] = []
    assert tell({**H200, QUERY: answer}, asked) == Told(links={}, peers={}, complaint=complaint)
    assert asked == [QUERY]


def test_without_nvidia_smi_there_is_no_complaint() -> None:
    assert tell({}) == Told(links={}, peers={})


def test_after_a_hang_nothing_more_is_asked() -> None:
    asked: list[str] = []
    told = tell({**H200, TOPOLOGY: "!nvidia-smi topo -m did not answer within 60 s"}, asked)
    assert (len(told.gpus), told.links, told.peers) == (2, {}, {})
    assert asked == [QUERY, "nvidia-smi nvlink --status", TOPOLOGY]


def test_each_question_is_asked_once() -> None:
    asked: list[str] = []
    smi = Smi(recorded.ask(H200, recorded.DATA, asked))
    owner = ("a.service", "/a")
    found, wrong = nvidia_smi.plan_gpus(smi, 2, lambda _pid: owner)
    assert found is not None
    assert (found.links, wrong) == ({(0, 1): "NV18"}, [])
    assert nvidia_smi.tell(smi, lambda _pid: owner).links == found.links
    assert len(asked) == len(set(asked)) == 5


@pytest.mark.parametrize(
    ("topology", "links"),
    [
        ((recorded.DATA / "gpus/two_h200.txt").read_text()[:40], {}),  # cut short
        ("Failed to initialize NVML: Unknown Error", {}),
        ("!nvidia-smi topo -m ended with status 255: ", {}),
    ],
)
def test_links_that_are_not_told(topology: str, links: dict[tuple[int, int], str]) -> None:
    told = tell({**H200, TOPOLOGY: topology})
    assert (told.links, told.peers, len(told.gpus)) == (links, {(0, 1): ("OK", "OK")}, 2)


@pytest.mark.parametrize(
    ("reads", "writes", "peers"),
    [
        (table(2), table(2), {(0, 1): ("OK", "OK")}),
        (table(2, r0c1="CNS", r1c0="CNS"), table(2), {(0, 1): ("CNS", "OK")}),
        (table(2), table(2, r1c0="TNS"), {(0, 1): ("OK", "TNS")}),  # one way only
        (table(2), "unknown option", {(0, 1): ("OK", "")}),
        ("", "", {}),
        (table(3).rpartition(" GPU2")[0], table(3), dict.fromkeys([(0, 1), (0, 2), (1, 2)], ("OK", "OK"))),
        (
            table(3).rpartition(" GPU1")[0],
            table(3, r0c2="NS"),
            {(0, 1): ("", "OK"), (0, 2): ("", "NS"), (1, 2): ("", "OK")},
        ),
        (
            table(4, r2c3="GNS", r3c2="GNS"),
            table(4),
            {(a, b): ("GNS" if a == 2 else "OK", "OK") for a in range(4) for b in range(a + 1, 4)},
        ),
    ],
)
def test_who_may_read_and_write_whose_memory(
    reads: str, writes: str, peers: dict[tuple[int, int], tuple[str, str]]
) -> None:
    assert nvidia_smi.parse_peers(reads, writes) == peers


@pytest.mark.parametrize(
    ("status", "links"),
    [
        ("GPU 0: NVIDIA A\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\nGPU 1: NVIDIA A\n", {0: (1, 2), 1: (0, 0)}),
        ("GPU 3: NVIDIA A (UUID: x)\nUnable to retrieve NVLink information as all links are inActive\n", {3: (0, 0)}),
        ("\t Link 0: 26.562 GB/s\n", {}),
        ("Failed to initialize NVML: Unknown Error", {}),
        ("", {}),
    ],
)
def test_nvlinks_that_are_up(status: str, links: dict[int, tuple[int, int]]) -> None:
    assert nvidia_smi.parse_nvlinks(status) == links
