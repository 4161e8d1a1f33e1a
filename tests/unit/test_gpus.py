# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""GPUs from recorded or written text, which stands in for hardware.

``two_h200`` was recorded on a node with driver 580.159.04, what identifies it taken out and clocks left out; the other
files are written in the form of that driver.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import gpus
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding
from ansible_collections.inference.sglang.plugins.module_utils.gpus import CARDS, MIB, Gpu, GpuError, NodeGpus, Process
from ansible_collections.inference.sglang.plugins.module_utils.launch_rules import LEVELS

DATA = Path(__file__).parent / "data" / "gpus"
SERVER = CARDS["rtx_pro_6000_server"]
PRODUCT = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


def text(name: str) -> str:
    return (DATA / name).read_text()


def read(query: str, topology: str) -> NodeGpus:
    return gpus.parse(text(query)).linked(gpus.parse_links(text(topology)))


H200 = read("two_h200.xml", "two_h200.txt")
ORPHANS = read("eight_rtx_pro_6000_orphans.xml", "eight_pcie_switch_pairs.txt")
MIG = read("eight_rtx_pro_6000_mig.xml", "eight_pcie_two_sockets.txt")
IDLE = ORPHANS.quiet()


def query(*products: str, memory: str = "81920 MiB", processes: str = "") -> str:
    one = (
        "<gpu id='0'><product_name>{}</product_name><fb_memory_usage><total>{}</total></fb_memory_usage>"
        "<processes>{}</processes></gpu>"
    )
    described = "".join(one.format(product, memory, processes) for product in products)
    return f"<nvidia_smi_log><attached_gpus>{len(products)}</attached_gpus>{described}</nvidia_smi_log>"


def fault(error: pytest.ExceptionInfo[GpuError]) -> Finding:
    (finding,) = error.value.findings
    return finding


def ids(findings: list[Finding]) -> list[str]:
    return [finding.id for finding in findings]


# Cards


@pytest.mark.parametrize(
    ("product", "name"),
    [
        (PRODUCT, "rtx_pro_6000_server"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx_pro_6000_workstation"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx_pro_6000_max_q"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100_80gb"),
        ("NVIDIA L40S", "l40s"),
        ("L40S", "l40s"),
    ],
)
def test_a_product_is_a_card(product: str, name: str) -> None:
    assert gpus.known(product) == CARDS[name]


@pytest.mark.parametrize(
    "product",
    [
        "H200 NVL",
        "H100 PCIe",
        "H100 NVL",
        "GH200 480GB",
        "A100-SXM4-40GB",
        "A100 80GB PCIe",
        "L40",
        "GB10",
        "B2000",
        "",
    ],
)
def test_a_card_that_only_sounds_like_one_is_not_known(product: str) -> None:
    assert gpus.known(f"NVIDIA {product}") is None


def test_every_card_can_be_named_and_found() -> None:
    assert set(gpus._PRODUCTS) == set(CARDS)
    for name, card in CARDS.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        assert card.name == name
        assert all((card.memory, card.multiprocessors, card.bandwidth, card.flops, card.link_bandwidth, card.power))
    families = {
        family: {name for name, card in CARDS.items() if card.capability // 10 == family} for family in range(13)
    }
    assert families[12] == {"rtx_pro_6000_server", "rtx_pro_6000_workstation", "rtx_pro_6000_max_q"}
    assert families[10] == {"b200", "gb200", "b300"}
    assert families[9] == {"h100", "h200"}
    assert families[8] == {"a100_80gb", "l40s"}
    assert {name for name, card in CARDS.items() if card.link == "pcie"} == families[12] | {"l40s"}


def test_numbers_are_in_the_units_that_they_say() -> None:
    """Bounds that a slip of a thousand would break; a card reads its memory 10 to 60 times a second."""
    for card in CARDS.values():
        assert 10 < card.bandwidth / card.memory < 60
        assert 100 < card.flops / card.bandwidth < 450
        assert 2 * card.link_bandwidth < card.bandwidth
        assert 200 < card.power < 1500


# Readings


def test_two_real_h200() -> None:
    assert H200.driver == "580.159.04"
    assert [(gpu.index, gpu.product, gpu.card, gpu.memory, gpu.mig) for gpu in H200.gpus] == [
        (index, "NVIDIA H200", CARDS["h200"], 143771 * MIB, False) for index in (0, 1)
    ]
    assert [gpu.processes for gpu in H200.gpus] == [(), (Process(591, "python3", 2566 * MIB),)]
    assert H200.links == {(0, 1): "NV18"}
    assert (H200.link(), H200.level()) == ("nvlink", "NVL")


def test_processes_and_mig_are_read() -> None:
    assert [gpu.processes[0].pid for gpu in ORPHANS.gpus] == list(range(41000, 41008))
    assert ORPHANS.gpus[3].processes == (Process(41003, "sglang::scheduler_PP3", 83980 * MIB),)
    assert [gpu.mig for gpu in MIG.gpus] == [True] * 8
    assert {gpu.card for gpu in MIG.gpus} == {SERVER}


def test_quiet_readings_are_equal_whatever_runs() -> None:
    idle = text("eight_rtx_pro_6000_orphans.xml").replace("41000", "999").replace("83980 MiB", "12 MiB")
    assert gpus.parse(idle) != gpus.parse(text("eight_rtx_pro_6000_orphans.xml"))
    assert gpus.parse(idle).quiet() == gpus.parse(text("eight_rtx_pro_6000_orphans.xml")).quiet()


@pytest.mark.parametrize("node", [H200, ORPHANS, MIG, NodeGpus(())])
def test_a_reading_survives_json(node: NodeGpus) -> None:
    node = node.owned(lambda pid: (f"{pid}.service", "/system.slice"))
    assert NodeGpus.from_dict(json.loads(json.dumps(node.to_dict()))) == node


def test_nothing_that_identifies_a_card_is_kept() -> None:
    marked = text("two_h200.xml").replace("N/A</uuid>", "GPU-1234</uuid>").replace("N/A</serial>", "5678</serial>")
    kept = json.dumps(gpus.parse(marked).to_dict())
    assert "1234" not in kept
    assert "5678" not in kept


def test_an_unknown_card_is_what_was_read() -> None:
    node = gpus.parse(query("NVIDIA H200 NVL", "NVIDIA L40S", memory="48000 MiB"), "9.0\n8.9\n")
    assert node.gpus[0].card == gpus.Card(name="h200_nvl", capability=90, memory=48000 * MIB)
    assert node.gpus[1].card == replace(CARDS["l40s"], memory=48000 * MIB), "memory is what was read"
    (unasked,) = gpus.parse(query("NVIDIA GB10", memory="N/A"), "[N/A]").gpus
    assert (unasked.card, unasked.memory) == (gpus.Card(name="gb10"), 0)
    (untold,) = gpus.parse(query("NVIDIA L40S", memory="N/A")).gpus
    assert (untold.card.memory, untold.memory) == (CARDS["l40s"].memory, 0)


def test_only_processes_that_compute_are_kept() -> None:
    one = "<process_info><pid>{}</pid><type>{}</type><used_memory>{}</used_memory></process_info>"
    listed = [("1", "C", "10 MiB"), ("2", "G", "20 MiB"), ("3", "C+G", "N/A"), ("4", "M+C", "5 MiB"), ("N/A", "C", "")]
    (gpu,) = gpus.parse(query("NVIDIA L40S", processes="".join(one.format(*line) for line in listed))).gpus
    assert [(process.pid, process.memory) for process in gpu.processes] == [(1, 10 * MIB), (3, 0), (4, 5 * MIB)]


def test_a_process_may_be_called_anything_and_its_arguments_are_not_kept() -> None:
    odd = "<process_info><pid>1</pid><type>C</type><process_name>{}</process_name></process_info>"
    names = ["a&b<c\x01 --api-key hunter2", "a&amp;b", ""]
    (gpu,) = gpus.parse(query("NVIDIA L40S", processes="".join(odd.format(name) for name in names))).gpus
    assert [process.name for process in gpu.processes] == ["a&b<c", "a&b", ""]


def test_warnings_of_the_driver_around_it_do_no_harm() -> None:
    around = f"WARNING: infoROM is corrupted\n{text('two_h200.xml')}\nWARNING: infoROM is corrupted\n"
    assert gpus.parse(around).gpus == H200.gpus


@pytest.mark.parametrize(
    ("broken", "seen"),
    [
        ("", "printed nothing"),
        ("\nNo devices were found\n", "printed 'No devices were found'"),
        (text("two_h200.xml")[:9000], "printed XML that breaks off"),
        ("<nvidia_smi_log><gpu></nvidia_smi_log>", "printed XML that cannot be read"),
        ("<nvidia_smi_log></nvidia_smi_log>", "counts no GPUs and describes 0"),
        (query("NVIDIA L40S").replace("<attached_gpus>1", "<attached_gpus>8"), "counts 8 GPUs and describes 1"),
    ],
)
def test_text_that_tells_no_gpus_is_a_finding(broken: str, seen: str) -> None:
    with pytest.raises(GpuError) as error:
        gpus.parse(broken)
    finding = fault(error)
    assert (finding.id, finding.severity) == ("gpus.unreadable", "error")
    assert seen in finding.seen


def test_links_of_pcie() -> None:
    assert len(ORPHANS.links) == 28
    assert ORPHANS.links[0, 1] == "PIX"
    assert ORPHANS.links[1, 2] == "NODE"
    assert ORPHANS.links[3, 4] == "SYS"
    assert {word for pair, word in MIG.links.items() if max(pair) < 4} == {"NODE"}


@pytest.mark.parametrize(
    ("links", "link", "level"),
    [
        ("NV18 NV18 NV18", "nvlink", "NVL"),
        ("NV4 NV4 NODE", "pcie", "PHB"),
        ("PIX PIX PIX", "pcie", "PIX"),
        ("PIX PXB PIX", "pcie", "PXB"),
        ("PIX PXB PHB", "pcie", "PHB"),
        # NCCL's graph has one CPU a NUMA domain, and knows no NODE.
        ("PIX NODE PHB", "pcie", "PHB"),
        ("NODE SYS NV1", "pcie", "SYS"),
    ],
)
def test_the_level_is_that_of_the_farthest_pair_in_a_word_of_nccl(links: str, link: str, level: str) -> None:
    node = NodeGpus(IDLE.gpus[:3], links=dict(zip([(0, 1), (0, 2), (1, 2)], links.split(), strict=True)))
    assert (node.link(), node.level()) == (link, level)
    assert level in LEVELS


def test_link_and_level_are_those_of_the_chosen() -> None:
    assert ORPHANS.level([0, 1]) == ORPHANS.level([7, 6]) == "PIX"
    assert ORPHANS.level([0, 1, 2, 3]) == "PHB"
    assert ORPHANS.level() == ORPHANS.level(range(8)) == "SYS"
    assert (ORPHANS.level([3]), H200.level([1])) == ("", "")
    assert (ORPHANS.link([3]), H200.link([1])) == ("pcie", "nvlink"), "of one, what its card has"
    assert (ORPHANS.link([9]), ORPHANS.level([9])) == ("pcie", "")


def test_without_a_reading_cards_are_linked_as_usual_and_no_level_is_told() -> None:
    bare = replace(H200, links={})
    assert (bare.link(), bare.level()) == ("nvlink", "")
    assert (replace(ORPHANS, links={}).link(), replace(ORPHANS, links={(0, 1): "SYS"}).level()) == ("pcie", "")


def test_columns_of_other_devices_are_no_gpus() -> None:
    table = (
        "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tPXB\tNODE\t0-31\t0\t\tN/A\nGPU1\tPXB\t X \tPIX\t0-31\t0\t\tN/A\n"
        "NIC0\tNODE\tPIX\t X \t\t\t\t\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
    )
    assert gpus.parse_links(table) == {(0, 1): "PXB"}


@pytest.mark.parametrize(
    ("broken", "seen"),
    [
        ("", "printed nothing"),
        ("Failed to initialize NVML: Unknown Error\n", "printed 'Failed to initialize NVML: Unknown Error'"),
        ("GPU0\t X \tPIX\nGPU1\tPIX\t X \n", "printed"),
        (text("eight_pcie_two_sockets.txt")[:250], "nothing of the GPUs 3-4, 3-5"),
        (text("two_h200.txt").replace("NV18", "SOC"), "says SOC between two GPUs"),
    ],
)
def test_text_that_tells_no_links_is_a_finding(broken: str, seen: str) -> None:
    with pytest.raises(GpuError) as error:
        gpus.parse_links(broken)
    finding = fault(error)
    assert (finding.id, finding.severity) == ("gpus.topology", "warning")
    assert seen in finding.seen


def test_a_plan_counts_with_the_smallest_card_as_it_is_linked() -> None:
    assert H200.card() == CARDS["h200"]
    assert IDLE.card([0, 1]) == SERVER
    assert mixed().card() == replace(CARDS["l40s"])
    assert NodeGpus(()).card() is None
    split = replace(H200, links={(0, 1): "SYS"})
    assert split.card() == replace(CARDS["h200"], link="pcie", link_bandwidth=64 * 10**9)
    assert split.card([0]) == CARDS["h200"]
    unknown = gpus.parse(query("NVIDIA H200 NVL", "NVIDIA H200 NVL", memory="143000 MiB"), "9.0\n9.0")
    assert unknown.card() == gpus.Card(name="h200_nvl", capability=90, memory=143000 * MIB)
    assert unknown.card(declared=CARDS["h200"]) == replace(
        CARDS["h200"], memory=143000 * MIB, link="pcie", link_bandwidth=64 * 10**9
    )
    assert gpus.parse(query("A", memory="N/A")).card(declared=SERVER) == SERVER
    bridged = replace(IDLE, gpus=IDLE.gpus[:2], links={(0, 1): "NV4"})
    assert bridged.card() == replace(SERVER, link="nvlink", link_bandwidth=0), "how fast a bridge is, nobody told"


# Rules


def test_a_free_node_has_no_fault() -> None:
    assert gpus.judge(IDLE) == gpus.judge(IDLE, range(8)) == gpus.judge(IDLE, [2, 3], declared=SERVER, count=8) == []


def test_gpus_that_are_not_there() -> None:
    (finding,) = gpus.judge(IDLE, [0, 8, 9])
    assert (finding.id, finding.severity) == ("gpus.missing", "error")
    assert finding.seen.startswith("GPUs 8, 9 of sglang_server_gpus on a node with GPUs 0, 1, 2")
    assert ids(gpus.judge(NodeGpus(()), [0])) == ["gpus.missing"]


def test_mig_matters_on_the_chosen_gpus() -> None:
    node = replace(IDLE, gpus=(*IDLE.gpus[:7], replace(IDLE.gpus[7], mig=True)))
    (finding,) = gpus.judge(node)
    assert (finding.id, finding.seen) == ("gpus.mig", "MIG is enabled on GPU 7")
    assert "nvidia-smi -i 7 -mig 0" in finding.remedy
    assert gpus.judge(node, [0, 1]) == []
    assert ids(gpus.judge(MIG.quiet())) == ["gpus.mig"]


def mixed() -> NodeGpus:
    l40s = Gpu(2, "NVIDIA L40S", CARDS["l40s"], CARDS["l40s"].memory)
    return NodeGpus((*IDLE.gpus[:2], l40s))


def test_kinds_are_not_mixed() -> None:
    (finding,) = gpus.judge(mixed())
    assert (finding.id, finding.seen) == ("gpus.mixed", f"GPUs 0, 1: {PRODUCT}; GPU 2: NVIDIA L40S")
    assert gpus.judge(mixed(), [0, 1]) == gpus.judge(mixed(), [2]) == []


def test_settings_that_describe_another_node() -> None:
    assert ids(gpus.judge(IDLE, count=16)) == ["gpus.declared"]
    assert gpus.judge(IDLE, count=2) == []
    (finding,) = gpus.judge(IDLE, declared=CARDS["h200"])
    assert finding.id == "gpus.declared"
    assert "h200 (capability 9.0, 143771 MiB), GPU 0 is NVIDIA RTX PRO 6000" in finding.seen
    assert "(capability 12.0, 97887 MiB)" in finding.seen
    assert gpus.judge(mixed(), [2], declared=CARDS["l40s"]) == []
    assert ids(gpus.judge(IDLE, declared=CARDS["rtx_pro_6000_workstation"])) == ["gpus.declared"]


def test_an_unknown_card_may_be_called_like_one_that_it_can_stand_for() -> None:
    node = gpus.parse(query("NVIDIA H200 NVL", memory="143771 MiB"), "9.0")
    (finding,) = gpus.judge(node)
    assert (finding.id, finding.severity) == ("gpus.unknown", "warning")
    assert "NVIDIA H200 NVL" in finding.seen
    assert gpus.judge(node, declared=CARDS["h200"]) == []
    assert ids(gpus.judge(node, declared=SERVER)) == ["gpus.declared"], "another capability"
    small = gpus.parse(query("NVIDIA H100 PCIe", memory="81000 MiB"), "9.0")
    assert ids(gpus.judge(small, declared=CARDS["h200"])) == ["gpus.declared"], "less memory"
    assert gpus.judge(gpus.parse(query("NVIDIA H100 PCIe", memory="N/A")), declared=CARDS["h100"]) == []


def owned(unit: str, cgroup: str = "") -> NodeGpus:
    return ORPHANS.owned(lambda _pid: (unit, cgroup))


def test_orphans_hold_the_gpus() -> None:
    """Case C21: the unit does not run, its schedulers still do."""
    (finding,) = gpus.judge(owned("", "/init.scope"), unit="sglang-kimi.service", running=False)
    assert (finding.id, finding.severity) == ("gpus.held", "error")
    assert finding.seen.startswith("671840 MiB are held by 8 process(es) of no service of systemd, in /init.scope: ")
    for pid in range(41000, 41008):
        assert f"{pid} (sglang::scheduler_PP{pid - 41000}, 83980 MiB on GPU {pid - 41000})" in finding.seen
    assert "kill 41000 41001 41002 41003 41004 41005 41006 41007" in finding.remedy
    (left,) = gpus.judge(owned("sglang-kimi.service"), unit="sglang-kimi.service", running=False)
    assert "of sglang-kimi.service that does not run" in left.seen
    assert left.remedy.startswith("End what it left behind: kill 41000")


def test_the_instance_itself_may_hold_them_while_it_runs() -> None:
    assert gpus.judge(owned("sglang-kimi.service"), unit="sglang-kimi.service") == []
    assert ids(gpus.judge(owned(""))) == ["gpus.held"], "no unit is nobody's own"


def test_another_service_holds_them() -> None:
    (finding,) = gpus.judge(owned("vllm.service", "/system.slice/vllm.service"), unit="sglang-kimi.service")
    assert "of vllm.service: 41000" in finding.seen
    assert finding.remedy == "Stop it: systemctl stop vllm.service, or choose other GPUs in sglang_server_gpus"
    (user,) = gpus.judge(owned("jupyter.service", "/user.slice/user-1000.slice/user@1000.service/jupyter.service"))
    assert "systemctl" not in user.remedy, "the service manager of a user is another one"
    assert "in /user.slice/user-1000.slice/user@1000.service/jupyter.service" in user.seen


def test_only_holders_of_the_chosen_gpus_count_each_owner_once() -> None:
    node = ORPHANS.owned(lambda pid: ("a.service" if pid % 2 else "b.service", ""))
    assert [finding.seen[:50] for finding in gpus.judge(node, [0, 1, 2])] == [
        "167960 MiB are held by 2 process(es) of b.service:",
        "83980 MiB are held by 1 process(es) of a.service: ",
    ]
    assert gpus.judge(H200, [0]) == []


def test_two_instances_do_not_share_a_gpu() -> None:
    others = {"small": [6, 7], "tiny": []}
    assert gpus.judge(IDLE, [0, 1, 2, 3], others=others) == []
    (finding,) = gpus.judge(IDLE, others=others)
    assert (finding.id, finding.seen) == ("gpus.shared", "instance small of this node has GPUs 6, 7 too")
    assert gpus.judge(IDLE, [5], others={"all": None})[0].seen == "instance all of this node has GPU 5 too"
