# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""GPUs: what a kind of card can do, what ``nvidia-smi`` says of a node's, and whether an instance may have them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal
from xml.sax.saxutils import escape

from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, Severity, as_text

HERE = "plugins/module_utils/gpus.py"
MIB = 1 << 20

Link = Literal["pcie", "nvlink"]


class GpuError(ValueError):
    """What nvidia-smi printed cannot be used; ``findings`` say why."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__(as_text(findings))
        self.findings = findings


@dataclass(frozen=True, kw_only=True)
class Card:
    """A kind of GPU. A number that is not known is 0, a name that is not known empty.

    ``name``             what settings call it: ``rtx_pro_6000_server``
    ``capability``       CUDA's compute capability times ten: 120 is SM120
    ``memory``           bytes as nvidia-smi states them (memory.total)
    ``multiprocessors``  number of streaming multiprocessors
    ``bandwidth``        of its memory, bytes/s
    ``flops``            dense bf16 on tensor cores, FLOP/s
    ``link``             what connects two of them in the usual server
    ``link_bandwidth``   between two of them in one direction, bytes/s, as the link is specified
    ``power``            largest power limit, W
    ``system``           what aiconfigurator 0.12.0 calls it
    """

    name: str = ""
    capability: int = 0
    memory: int = 0
    multiprocessors: int = 0
    bandwidth: int = 0
    flops: int = 0
    link: Link = "pcie"
    link_bandwidth: int = 0
    power: int = 0
    system: str = ""


PCIE_4, PCIE_5 = 32 * 10**9, 64 * 10**9
"""Bytes/s of 16 lanes in one direction."""

CARDS: Mapping[str, Card] = {
    card.name: card
    for card in (
        # Bandwidth and power: NVIDIA's page of the Server Edition. It states no dense bf16: 1024 FLOP a clock and
        # multiprocessor, as on the Workstation Edition, at the 2430 MHz that the card reports (aiconfigurator 0.12.0,
        # systems/rtx_pro_6000_server.yaml, which has the Workstation Edition's bandwidth).
        Card(
            name="rtx_pro_6000_server",
            capability=120,
            memory=97887 * MIB,
            multiprocessors=188,
            bandwidth=1597 * 10**9,
            flops=4678 * 10**11,
            link_bandwidth=PCIE_5,
            power=600,
            system="rtx_pro_6000_server",
        ),
        # NVIDIA RTX Blackwell PRO architecture paper: 1792 GB/s, 503.8 TFLOPS dense. memory.total: MarcoPizeta/
        # flash-next-rtxpro6000-bench.
        Card(
            name="rtx_pro_6000_workstation",
            capability=120,
            memory=97887 * MIB,
            multiprocessors=188,
            bandwidth=1792 * 10**9,
            flops=5038 * 10**11,
            link_bandwidth=PCIE_5,
            power=600,
        ),
        # NVIDIA's datasheet: 3511 TOPS of sparse FP4, an eighth of which is dense bf16.
        Card(
            name="rtx_pro_6000_max_q",
            capability=120,
            memory=97887 * MIB,
            multiprocessors=188,
            bandwidth=1792 * 10**9,
            flops=4389 * 10**11,
            link_bandwidth=PCIE_5,
            power=300,
        ),
        # NVIDIA's Blackwell datasheet. Multiprocessors, and bandwidth by bus width and clock: pytorch/ao#4002;
        # memory.total: NVIDIA/TensorRT-LLM#10278.
        Card(
            name="b200",
            capability=100,
            memory=183359 * MIB,
            multiprocessors=148,
            bandwidth=7700 * 10**9,
            flops=2250 * 10**12,
            link="nvlink",
            link_bandwidth=900 * 10**9,
            power=1000,
            system="b200_sxm",
        ),
        # NVIDIA's Blackwell datasheet; memory.total: aiconfigurator 0.12.0, systems/gb200.yaml. Multiprocessors are
        # what CUDA reports on the card.
        Card(
            name="gb200",
            capability=100,
            memory=189471 * MIB,
            multiprocessors=152,
            bandwidth=8000 * 10**9,
            flops=2500 * 10**12,
            link="nvlink",
            link_bandwidth=900 * 10**9,
            power=1200,
            system="gb200",
        ),
        # NVIDIA's Blackwell Ultra datasheet; memory.total: aiconfigurator 0.12.0, systems/b300_sxm.yaml.
        # Multiprocessors are what CUDA reports on the card.
        Card(
            name="b300",
            capability=103,
            memory=275040 * MIB,
            multiprocessors=148,
            bandwidth=7750 * 10**9,
            flops=2250 * 10**12,
            link="nvlink",
            link_bandwidth=900 * 10**9,
            power=1100,
            system="b300_sxm",
        ),
        # NVIDIA's datasheet of H100 SXM; memory.total: modal-labs/modal-client#2797.
        Card(
            name="h100",
            capability=90,
            memory=81559 * MIB,
            multiprocessors=132,
            bandwidth=3350 * 10**9,
            flops=989 * 10**12,
            link="nvlink",
            link_bandwidth=450 * 10**9,
            power=700,
            system="h100_sxm",
        ),
        # NVIDIA's datasheet of H200 SXM; memory.total and multiprocessors were read on one (tests/unit/data/gpus).
        Card(
            name="h200",
            capability=90,
            memory=143771 * MIB,
            multiprocessors=132,
            bandwidth=4800 * 10**9,
            flops=989 * 10**12,
            link="nvlink",
            link_bandwidth=450 * 10**9,
            power=700,
            system="h200_sxm",
        ),
        # NVIDIA's datasheet of A100 80GB SXM; memory.total: modal-labs/modal-client#2797.
        Card(
            name="a100_80gb",
            capability=80,
            memory=81920 * MIB,
            multiprocessors=108,
            bandwidth=2039 * 10**9,
            flops=312 * 10**12,
            link="nvlink",
            link_bandwidth=300 * 10**9,
            power=400,
            system="a100_sxm",
        ),
        # NVIDIA's datasheet; memory.total: modal-labs/modal-client#2797.
        Card(
            name="l40s",
            capability=89,
            memory=46068 * MIB,
            multiprocessors=142,
            bandwidth=864 * 10**9,
            flops=362 * 10**12,
            link_bandwidth=PCIE_4,
            power=350,
            system="l40s",
        ),
    )
}
"""The cards that settings may name. The link's speed is NVLink's of its generation, or that of 16 lanes of PCIe."""

_PRODUCTS = {
    "rtx_pro_6000_server": r"RTX PRO 6000 Blackwell Server Edition",
    "rtx_pro_6000_workstation": r"RTX PRO 6000 Blackwell Workstation Edition",
    "rtx_pro_6000_max_q": r"RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "b200": r"B200",
    "gb200": r"GB200",
    "b300": r"B300( SXM6( AC)?)?",
    "h100": r"H100 80GB HBM3",
    "h200": r"H200",
    "a100_80gb": r"A100-SXM4-80GB",
    "l40s": r"L40S",
}
"""What nvidia-smi calls them, in full: H200 NVL, H100 PCIe or GH200 are other cards."""


def known(product: str) -> Card | None:
    """The card of this product name of nvidia-smi; None for one that is not in ``CARDS``."""
    bare = product.strip().removeprefix("NVIDIA ")
    return next((CARDS[name] for name, pattern in _PRODUCTS.items() if re.fullmatch(pattern, bare)), None)


def linked(card: Card, link: Link) -> Card:
    """A card that shares something else with its neighbours than usual; the speed of such an NVLink is not known."""
    if link == card.link:
        return card
    return replace(card, link=link, link_bandwidth=(PCIE_5 if card.capability >= 90 else PCIE_4) * (link == "pcie"))


@dataclass(frozen=True)
class Process:
    """A process that computes on a GPU.

    ``memory``  bytes that it holds there; 0 where the driver does not tell
    ``unit``    its systemd service, ``cgroup`` its control group; empty where nobody looked, or it has none
    """

    pid: int
    name: str
    memory: int
    unit: str = ""
    cgroup: str = ""


@dataclass(frozen=True)
class Gpu:
    """A GPU of a node.

    ``index``    nvidia-smi's, which is CUDA's where ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``
    ``product``  name as nvidia-smi says it
    ``card``     what it can do; its memory is what was read
    ``memory``   bytes that were read (memory.total); 0 where nvidia-smi does not tell
    ``mig``      whether it is divided into instances
    """

    index: int
    product: str
    card: Card
    memory: int
    mig: bool = False
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True)
class NodeGpus:
    """The GPUs of a node. ``links`` says for pairs of indices, the smaller first, what ``nvidia-smi topo -m`` does:
    ``NV18``, ``PIX``, ``PXB``, ``PHB``, ``NODE`` or ``SYS``.
    """

    gpus: tuple[Gpu, ...]
    driver: str = ""
    links: Mapping[tuple[int, int], str] = field(default_factory=dict)

    def of(self, indices: Iterable[int]) -> list[Gpu]:
        """Those of the GPUs that are there; all of them for no indices."""
        wanted = list(indices)
        return [gpu for gpu in self.gpus if gpu.index in wanted or not wanted]

    def link(self, indices: Iterable[int] = ()) -> Link:
        """What these GPUs share: NVLink where every pair does. Without a reading, what their cards usually do."""
        chosen = self.of(indices)
        between = self._between(chosen)
        if between:
            return "nvlink" if all(word.startswith("NV") for word in between) else "pcie"
        return "nvlink" if chosen and all(gpu.card.link == "nvlink" for gpu in chosen) else "pcie"

    def level(self, indices: Iterable[int] = ()) -> str:
        """The word of ``NCCL_P2P_LEVEL`` that lets each pair of these GPUs use peer to peer; empty where a distance is
        not known, or for a single GPU.

        NCCL knows no NODE. Its graph has one CPU a NUMA domain, and a path over PCIe through one is PHB, however many
        host bridges that has; SYS goes from one CPU to another (``ncclTopoSetPaths`` in ``src/graph/paths.cc`` and
        ``src/graph/topo.h``, NVIDIA/nccl of June 2026).
        """
        between = self._between(self.of(indices))
        levels = [_LEVELS["NVL" if word.startswith("NV") else word] for word in between]
        return max(levels, default=(0, ""))[1]

    def card(self, indices: Iterable[int] = (), declared: Card | None = None) -> Card | None:
        """What a plan for these GPUs can count with: the one with least memory, linked as they are.

        A product that is not in ``CARDS`` counts as ``declared``, with the memory that was read. None without a GPU.
        """
        chosen = self.of(indices)
        if not chosen:
            return None
        gpu = min(chosen, key=lambda gpu: gpu.card.memory)
        card = gpu.card
        if declared and not known(gpu.product):
            card = replace(declared, memory=gpu.memory or declared.memory)
        return linked(card, self.link(indices))

    def quiet(self) -> NodeGpus:
        """Without processes: what is the same at every reading."""
        return replace(self, gpus=tuple(replace(gpu, processes=()) for gpu in self.gpus))

    def linked(self, links: Mapping[tuple[int, int], str]) -> NodeGpus:
        """With what connects them."""
        return replace(self, links=links)

    def owned(self, owner: Callable[[int], tuple[str, str]]) -> NodeGpus:
        """With unit and control group of each process, which ``owner`` tells for its pid."""
        gpus = []
        for gpu in self.gpus:
            owners = ((process, *owner(process.pid)) for process in gpu.processes)
            processes = tuple(replace(process, unit=unit, cgroup=cgroup) for process, unit, cgroup in owners)
            gpus.append(replace(gpu, processes=processes))
        return replace(self, gpus=tuple(gpus))

    def to_dict(self) -> dict[str, Any]:
        """For JSON; a pair is ``0-1``."""
        links = {f"{first}-{second}": word for (first, second), word in self.links.items()}
        return {"gpus": [asdict(gpu) for gpu in self.gpus], "driver": self.driver, "links": links}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> NodeGpus:
        """What ``to_dict`` gave, also after JSON."""
        gpus = tuple(
            Gpu(
                **{
                    **gpu,
                    "card": Card(**gpu["card"]),
                    "processes": tuple(Process(**process) for process in gpu["processes"]),
                }
            )
            for gpu in values["gpus"]
        )
        pairs = ((pair.split("-"), word) for pair, word in values["links"].items())
        return cls(gpus, values["driver"], {(int(first), int(second)): word for (first, second), word in pairs})

    def _between(self, chosen: Sequence[Gpu]) -> list[str]:
        """The distance of each pair; none at all where one of them is not known."""
        indices = [gpu.index for gpu in chosen]
        pairs = [(first, second) for first in indices for second in indices if first < second]
        return [self.links[pair] for pair in pairs] if all(pair in self.links for pair in pairs) else []


_LEVELS = {"NVL": (1, "NVL"), "PIX": (2, "PIX"), "PXB": (3, "PXB"), "PHB": (4, "PHB"), "NODE": (4, "PHB")}
_LEVELS["SYS"] = (5, "SYS")


def parse(query: str, capabilities: str = "") -> NodeGpus:
    """The GPUs that ``nvidia-smi -q -x`` describes. Raises GpuError.

    ``capabilities``  what ``nvidia-smi --query-gpu=compute_cap --format=csv,noheader`` prints, as the XML has no
                      compute capability (driver 580); needed for products that are not in ``CARDS``
    """
    root = document(query)
    told = dict(enumerate(_capability(line) for line in capabilities.splitlines()))
    gpus = tuple(_gpu(index, node, told.get(index, 0)) for index, node in enumerate(root.findall("gpu")))
    attached = _text(root, "attached_gpus")
    if not gpus or attached not in ("", str(len(gpus))):
        raise _unreadable(f"nvidia-smi -q -x counts {attached or 'no'} GPUs and describes {len(gpus)}")
    return NodeGpus(gpus, _text(root, "driver_version"))


def document(query: str) -> ET.Element:
    """The XML that ``nvidia-smi -q -x`` prints, without arguments of processes. Raises GpuError."""
    # The driver prints warnings before or after, such as of a corrupted infoROM.
    document = re.search(r"<nvidia_smi_log>.*</nvidia_smi_log>", query, re.DOTALL)
    if not document:
        broken = "XML that breaks off" if "<nvidia_smi_log>" in query else _begin(query)
        raise _unreadable(f"nvidia-smi -q -x printed {broken}")
    # Names are the processes' own choice, and may hold anything.
    name = re.compile(r"(<process_name>)(.*?)(</process_name>)", re.DOTALL)
    text = name.sub(lambda found: f"{found[1]}{_first_word(found[2])}{found[3]}", document[0])
    try:
        return ET.fromstring(text)  # noqa: S314 # without its DOCTYPE it can define no entities
    except ET.ParseError as error:
        raise _unreadable(f"nvidia-smi -q -x printed XML that cannot be read: {error}") from error


def parse_links(topology: str) -> dict[tuple[int, int], str]:
    """What connects each pair of GPUs: ``nvidia-smi topo -m``. Raises GpuError."""
    cells = parse_matrix(topology, "nvidia-smi topo -m")
    links = {(row, column): word for (row, column), word in cells.items() if row < column}
    odd = sorted({word for word in links.values() if word not in _LEVELS and not re.fullmatch(r"NV\d+", word)})
    if odd:
        raise _unclear(f"nvidia-smi topo -m says {', '.join(odd)} between two GPUs")
    return links


def parse_matrix(text: str, command: str) -> dict[tuple[int, int], str]:
    """The word in each cell of a table of GPUs by GPUs, row first; the diagonal is left out. Raises GpuError.

    ``command``  what printed it: ``nvidia-smi topo -m``, ``nvidia-smi topo -p2p r``
    """
    # The header is underlined, also where no terminal reads it (driver 580).
    lines = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    header = next((words for words in lines if words and words[0] == "GPU0"), [])
    columns = [int(word[3:]) for word in header if re.fullmatch(r"GPU\d+", word)]
    if "X" in header or not columns:
        raise _unclear(f"{command} printed {_begin(text)}")
    table = {}
    for row in columns:
        cells = next((words[1:] for words in lines if words[:1] == [f"GPU{row}"] and words != header), [])
        for column, word in zip(columns, cells, strict=False):
            if row != column:
                table[row, column] = word
    missing = [f"{a}-{b}" for a in columns for b in columns if a < b and (a, b) not in table]
    if missing:
        raise _unclear(f"{command} says nothing of the GPUs {', '.join(missing)}")
    return table


# Rules. Each judges the GPUs that an instance is to have; an empty selection is all of them.


def judge(
    node: NodeGpus,
    selected: Sequence[int] = (),
    *,
    declared: Card | None = None,
    count: int | None = None,
    unit: str = "",
    running: bool = True,
    others: Mapping[str, Sequence[int] | None] | None = None,
) -> list[Finding]:
    """All that keeps an instance from these GPUs, or that settings say otherwise.

    ``declared``, ``count``  card and number of GPUs by the settings
    ``unit``                 the instance's own, whose processes may hold them while it is ``running``
    ``others``               other instances of the node: name to GPUs, None for all
    """
    return [
        *_missing(node, selected),
        *_divided(node, selected),
        *_mixed(node, selected),
        *_unknown(node, selected, declared),
        *_declared(node, selected, declared, count),
        *_held(node, selected, unit, running),
        *_shared(node, selected, others or {}),
    ]


def _missing(node: NodeGpus, selected: Sequence[int]) -> Iterator[Finding]:
    there = [gpu.index for gpu in node.gpus]
    absent = sorted(set(selected) - set(there))
    if absent:
        seen = f"{_named(absent)} of sglang_server_gpus on a node with {_named(there)}"
        yield _finding("missing", seen, f"Choose among {', '.join(map(str, there))}")


def _divided(node: NodeGpus, selected: Sequence[int]) -> Iterator[Finding]:
    """SGLang is given whole GPUs; MIG instances have no peer to peer (NVIDIA's MIG user guide)."""
    divided = [gpu.index for gpu in node.of(selected) if gpu.mig]
    if divided:
        listed = ",".join(map(str, divided))
        remedy = f"Run nvidia-smi -i {listed} -mig 0 while nothing uses them, or choose other GPUs"
        yield _finding("mig", f"MIG is enabled on {_named(divided)}", remedy, "NVIDIA MIG user guide")


def _mixed(node: NodeGpus, selected: Sequence[int]) -> Iterator[Finding]:
    """Every rank is given the same share of the model, and as much memory as the smallest GPU has."""
    kinds: dict[str, list[int]] = {}
    for gpu in node.of(selected):
        kinds.setdefault(gpu.product, []).append(gpu.index)
    if len(kinds) > 1:
        seen = "; ".join(f"{_named(indices)}: {product}" for product, indices in kinds.items())
        yield _finding("mixed", seen, "Choose GPUs of one kind in sglang_server_gpus")


def _unknown(node: NodeGpus, selected: Sequence[int], declared: Card | None) -> Iterator[Finding]:
    products = sorted({gpu.product for gpu in node.of(selected) if not known(gpu.product)})
    if products and not declared:
        seen = f"{', '.join(products)} is in no table, so that bandwidth and multiprocessors are not known"
        remedy = f"Set sglang_server_gpu_model to the card that is most like it: {', '.join(CARDS)}"
        yield _finding("unknown", seen, remedy, severity="warning")


def _declared(node: NodeGpus, selected: Sequence[int], declared: Card | None, count: int | None) -> Iterator[Finding]:
    """Settings that describe another node than this one. An unknown product may be called by the name of a known card
    that has its capability and no more memory.
    """
    if count is not None and count > len(node.gpus):
        seen = f"sglang_server_gpu_count is {count}, the node has {len(node.gpus)}"
        yield _finding("declared", seen, f"Set it to {len(node.gpus)} at most, or leave it out")
    other = [gpu for gpu in node.of(selected) if declared and not _may_be(gpu, declared)]
    if declared and other:
        gpu = other[0]
        seen = (
            f"sglang_server_gpu_model is {declared.name} (capability {declared.capability / 10}, "
            f"{declared.memory // MIB} MiB), GPU {gpu.index} is {gpu.product} (capability "
            f"{gpu.card.capability / 10}, {gpu.memory // MIB} MiB)"
        )
        yield _finding("declared", seen, "Leave it out: the plan then takes what it reads on the node")


def _may_be(gpu: Gpu, declared: Card) -> bool:
    if known(gpu.product):
        return gpu.card.name == declared.name
    enough = not gpu.memory or gpu.memory >= declared.memory
    return enough and gpu.card.capability in (0, declared.capability)


def _held(node: NodeGpus, selected: Sequence[int], unit: str, running: bool) -> Iterator[Finding]:
    """Memory that the engine would miss: sgl-project/sglang#16756. One finding for each service that holds some."""
    owners: dict[tuple[str, str], list[tuple[Gpu, Process]]] = {}
    for gpu in node.of(selected):
        for process in gpu.processes:
            if process.unit != unit or not unit or not running:
                # What a user's own service manager runs is not reached by systemctl stop.
                mine = "" if process.cgroup.startswith("/user.slice/") else process.unit
                owners.setdefault((mine, "" if mine else process.cgroup), []).append((gpu, process))
    for (service, cgroup), held in owners.items():
        pids = sorted({process.pid for _gpu, process in held})
        total = sum(process.memory for _gpu, process in held)
        processes = ", ".join(
            f"{process.pid} ({process.name}, {process.memory // MIB} MiB on GPU {gpu.index})" for gpu, process in held
        )
        left = " that does not run" if service and service == unit else ""
        whose = service or f"no service of systemd{f', in {cgroup}' if cgroup else ''}"
        kill = f"kill {' '.join(map(str, pids))}"
        other = "or choose other GPUs in sglang_server_gpus"
        if left:
            remedy = f"End what it left behind: {kill}, and kill -KILL what is still there after a minute"
        elif service:
            remedy = f"Stop it: systemctl stop {service}, {other}"
        else:
            remedy = f"End them or what started them: {kill}, {other}"
        seen = f"{total // MIB} MiB are held by {len(pids)} process(es) of {whose}{left}: {processes}"
        yield _finding("held", seen, remedy, "sgl-project/sglang#16756")


def _shared(node: NodeGpus, selected: Sequence[int], others: Mapping[str, Sequence[int] | None]) -> Iterator[Finding]:
    """Two instances that would each take nearly all memory of a GPU."""
    mine = {gpu.index for gpu in node.of(selected)}
    for name, theirs in others.items():
        both = sorted(mine if theirs is None else mine & set(theirs))
        if both:
            seen = f"instance {name} of this node has {_named(both)} too"
            remedy = "Give each instance its own in sglang_server_gpus, or remove that instance"
            yield _finding("shared", seen, remedy)


def _first_word(text: str) -> str:
    """A program's name without its arguments, which may hold secrets; as XML."""
    word = (text.split() or [""])[0]
    return escape("".join(character for character in word if character.isprintable()), {"&amp;amp;": "&amp;"})


def _gpu(index: int, node: ET.Element, capability: int) -> Gpu:
    product = _text(node, "product_name") or "a GPU without a name"
    card = known(product)
    memory = _bytes(_text(node, "fb_memory_usage/total"))
    if card is None:
        name = re.sub(r"[^a-z0-9]+", "_", product.removeprefix("NVIDIA ").lower()).strip("_")
        card = Card(name=name, capability=capability)
    processes = tuple(
        Process(int(pid), _text(process, "process_name"), _bytes(_text(process, "used_memory")))
        for process in node.findall("processes/process_info")
        # Compute and mixed contexts: C, C+G, M+C. What only draws holds little.
        if "C" in _text(process, "type") and (pid := _text(process, "pid")).isdecimal()
    )
    return Gpu(
        index=index,
        product=product,
        card=replace(card, memory=memory or card.memory),
        memory=memory,
        mig=_text(node, "mig_mode/current_mig") == "Enabled",
        processes=processes,
    )


def _text(node: ET.Element, path: str) -> str:
    return (node.findtext(path) or "").strip()


def _bytes(text: str) -> int:
    """Bytes of ``97887 MiB``; 0 for ``N/A`` and anything else."""
    found = re.fullmatch(r"(\d+) MiB", text)
    return int(found[1]) * MIB if found else 0


def _capability(text: str) -> int:
    found = re.fullmatch(r"(\d+)\.(\d)", text.strip())
    return int(found[1]) * 10 + int(found[2]) if found else 0


def _named(indices: Sequence[int]) -> str:
    """``GPU 3``, or ``GPUs 0, 1``."""
    return f"GPU{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"


def _begin(text: str) -> str:
    """The first line that says something."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"{line[:200]!r}" if line else "nothing"


def _finding(fault: str, seen: str, remedy: str, source: str = HERE, severity: Severity = "error") -> Finding:
    return Finding(f"gpus.{fault}", severity, seen, remedy, source)


def unreadable(seen: str) -> Finding:
    """That the GPUs of a node that has some cannot be told."""
    remedy = "Run nvidia-smi -q on the node; after an update of the driver, reboot, else search the kernel log for NVRM"
    return _finding("unreadable", seen, remedy)


def _unreadable(seen: str) -> GpuError:
    return GpuError(unreadable(seen))


def _unclear(seen: str) -> GpuError:
    """Worth a warning: the cards' usual link is taken instead."""
    remedy = "Run nvidia-smi topo -m on the node, and set sglang_server_nccl_p2p_level if the plan's level is wrong"
    return GpuError(_finding("topology", seen, remedy, severity="warning"))
