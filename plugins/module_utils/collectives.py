# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Collectives between a node's GPUs: which groups are tried, how fast they ought to be, and what a hang comes from."""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, Severity
from ansible_collections.inference.sglang.plugins.module_utils.gpus import known
from ansible_collections.inference.sglang.plugins.module_utils.hardware import GpuState, Hardware

HERE = "plugins/module_utils/collectives.py"
FORMAT = 1
"""Of records. Another number, and every node is proven again."""

COLLECTIVES = ("all_reduce", "send_recv")

Outcome = Literal["passed", "hung", "wrong", "failed", "unreached"]

PCIE_LANE = {1: 0.25e9, 2: 0.5e9, 3: 1e9, 4: 2e9, 5: 4e9, 6: 8e9}
"""Bytes/s of one lane in one direction, by generation, as ``gpus.PCIE_5`` counts 16 of them."""

SHARES = {"NV": 0.5, "PIX": 0.5, "PXB": 0.5, "PHB": 0.5, "NODE": 0.5, "SYS": 0.35}
"""The least share of a link's specified bandwidth that is not worth a warning.

Published for RTX PRO 6000 on PCIe 5.0: 52 to 56 GB/s of 64 within a NUMA node, 37 to 51 across, and 3 to 13 where a
switch or the root complex fails (local-inference-lab/rtx6kpro, hardware/pcie-bandwidth.md and collapse-report.md).
NVLink: docs/measurements.md has two H200.
"""

ALL_SHARE = 0.3
"""The same for all ranks together, where several share a way: published are 22 to 42 GB/s of 64 (pcie-bandwidth.md)."""

LEAST_SIZE = 64 << 20
"""Bytes. Below, the time to begin counts: 16 MiB gave 70 % and less of 256 MiB's bandwidth on two H200."""

ODD = 0.7
"""A pair below this share of the median of the other pairs of its class is named."""

FALLBACK = "sglang_server_p2p_fallback: true"
_REACH = {
    "NVL": ("NV",),
    "PIX": ("NV", "PI"),
    "PXB": ("NV", "PI", "PX"),
    "PHB": ("NV", "PI", "PX", "PH", "NO"),
    "SYS": ("NV", "PI", "PX", "PH", "NO", "SY"),
}
"""How the links begin over which NCCL uses peer to peer, by ``NCCL_P2P_LEVEL``; as ``gpus.NodeGpus.level`` has them."""

ACS_SOURCE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
RTX_SOURCE = "local-inference-lab/rtx6kpro#15"
SPEED_SOURCE = "docs/measurements.md"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One collective of one group.

    ``ranks``       GPUs by nvidia-smi's index; numbers of processes where there is no GPU
    ``collective``  one of ``COLLECTIVES``; or what comes before and after: ``start``, ``join``, ``leave``
    ``size``        bytes of the measurement, ``seconds`` that one took, once a repeat
    ``wrong``       elements that came out wrong
    ``states``      of the processes at a hang, by the letter in ``/proc/<pid>/stat``
    ``transport``   what NCCL said that it used (``P2P/CUMEM``); empty where it did not
    ``text``        what went wrong, in the program's words
    """

    ranks: tuple[int, ...]
    collective: str
    outcome: Outcome = "passed"
    size: int = 0
    seconds: tuple[float, ...] = ()
    wrong: int = 0
    states: Mapping[int, str] = field(default_factory=dict)
    transport: str = ""
    text: str = ""

    @property
    def bandwidth(self) -> float:
        """Median bus bandwidth, bytes/s; 0 where nothing was measured."""
        if not self.seconds:
            return 0
        return bus_bandwidth(self.collective, len(self.ranks), self.size, statistics.median(self.seconds))

    @property
    def pair(self) -> tuple[int, int]:
        """Of a group of two, the smaller index first."""
        first, second = sorted(self.ranks)
        return first, second


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was tried on a node, and how.

    ``backend``      ``nccl`` or ``gloo``
    ``ranks``        as in ``Run``
    ``environment``  NCCL's variables
    ``limits``       seconds for one step, and for everything
    ``left``         processes that could not be ended
    ``swept``        segments of shared memory that ended processes had left, and that were removed
    ``log``          where what the programs printed is kept; empty where all went well
    """

    backend: str
    ranks: tuple[int, ...]
    runs: tuple[Run, ...]
    hardware: Hardware = field(default_factory=Hardware)
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: tuple[float, float] = (0, 0)
    left: tuple[int, ...] = ()
    swept: tuple[str, ...] = ()
    log: str = ""

    @property
    def pairs(self) -> list[Run]:
        """Runs of two ranks; where there are only two, of all."""
        return [run for run in self.runs if len(run.ranks) == 2]

    @property
    def peers(self) -> bool:
        """Whether NCCL may let GPUs reach each other's memory."""
        off = self.environment.get("NCCL_P2P_DISABLE", "0") != "0" or self.environment.get("NCCL_P2P_LEVEL") == "LOC"
        return self.backend == "nccl" and not off


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """All pairs of ``count`` ranks in as few rounds as possible; no rank is in two pairs of a round.

    The circle method: one rank stays, the others move on by one place.
    """
    places: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    made = []
    for _turn in range(len(places) - 1):
        half = len(places) // 2
        met = zip(places[:half], reversed(places[half:]), strict=True)
        made.append([(min(a, b), max(a, b)) for a, b in met if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return made


def bus_bandwidth(collective: str, ranks: int, size: int, seconds: float) -> float:
    """Bytes/s that each link carried: nccl-tests' bus bandwidth, whatever the number of ranks.

    ``size``  bytes of one rank's buffer

    Source: NVIDIA/nccl-tests, ``doc/PERFORMANCE.md``.
    """
    return size / seconds * (2 * (ranks - 1) / ranks if collective == "all_reduce" else 1)


_VIA = re.compile(r"\d+\[[^\]]*\] -> \d+\[[^\]]*\](?: \[\w+\])? via (\S+)")


def transports(log: str) -> str:
    """What NCCL's channels go through, by its log at level INFO: ``P2P/CUMEM``, ``SHM/direct/direct``."""
    return ", ".join(sorted(set(_VIA.findall(log))))


def parse_test(output: str) -> tuple[int, float, int]:
    """Bytes, seconds of one operation, and wrong elements, out of place, in the last row of a program of nccl-tests.

    Raises ValueError where it printed no row.
    """
    rows = [line.split() for line in output.splitlines() if re.match(r"\s*\d+\s+\d+\s+\w+\s", line)]
    for row in reversed(rows):
        # size, count, type, redop, root, and for each of both kinds: time, algbw, busbw, #wrong
        if len(row) >= 9:
            return int(row[0]), float(row[5]) / 1e6, int(row[8]) if row[8].isdecimal() else 0
    raise ValueError(" ".join(output.split())[-500:] or "nothing was printed")


def gpu(hardware: Hardware, index: int) -> GpuState | None:
    """The GPU of nvidia-smi's index."""
    return next((gpu for gpu in hardware.gpus if gpu.index == index), None)


def expected(hardware: Hardware, pair: tuple[int, int]) -> float | None:
    """Bytes/s in one direction that the link of two GPUs is specified for; None where that is not known."""
    states = [state for index in pair if (state := gpu(hardware, index))]
    word = hardware.links.get(pair, "")
    if len(states) < 2 or not word:
        return None
    if word.startswith("NV"):
        cards = [known(state.product) for state in states]
        speeds = [
            # Of links that are shared out among neighbours, a pair has those that its word counts.
            card.link_bandwidth * int(word[2:]) / state.nvlinks[1]
            for card, state in zip(cards, states, strict=True)
            if card and card.link == "nvlink" and state.nvlinks and state.nvlinks[1] and word[2:].isdecimal()
        ]
    else:
        # An idle link is of the first generation; its width is what was negotiated.
        speeds = [
            PCIE_LANE[state.pcie_generation_max] * (state.pcie_width or state.pcie_width_max or 0)
            for state in states
            if state.pcie_generation_max in PCIE_LANE
        ]
    return min(speeds) if len(speeds) == 2 and min(speeds) > 0 else None


# Rules. Each judges one proof.


def not_started(proof: Proof) -> Iterator[Finding]:
    """A rank that cannot start is a GPU that this user cannot compute on."""
    for run in proof.runs:
        if run.collective == "start" and run.outcome != "passed":
            how = "did not start in time" if run.outcome == "hung" else f"did not start: {run.text}"
            seen = f"The process for {_named(proof, run.ranks)} {how}{_states(run)}"
            yield _finding(proof, "start", seen, "Correct what it says, as the instance would start no better", HERE)


def hung(proof: Proof) -> Iterator[Finding]:
    """The field case C18: two ranks wait for each other for ever, where more of them complete."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in proof.runs:
        if run.outcome == "hung" and run.collective != "start":
            remedy = _remedies(_suspects(proof, [run]))
            groups.setdefault((run.collective, run.transport, remedy), []).append(run)
    whole = all_passed(proof)
    for (collective, transport, remedy), runs in groups.items():
        between = "; ".join(_between(proof, run) for run in runs)
        over = f" over {transport}" if transport else ""
        seen = f"{_told(collective)} did not end within {proof.limits[0]:g} s{over}: {between}"
        if whole and all(len(run.ranks) < len(proof.ranks) for run in runs):
            seen += f", though that of all {len(proof.ranks)} did"
        seen += f". Suspected: {_reasons(_suspects(proof, runs))}"
        yield _finding(proof, "hung", seen, remedy, RTX_SOURCE if proof.peers else HERE)


def wrong(proof: Proof) -> Iterator[Finding]:
    """Data that arrives changed is worse than none: the engine would serve it."""
    for run in proof.runs:
        if run.outcome == "wrong":
            suspects = _suspects(proof, [run])
            seen = (
                f"{_told(run.collective)} gave {run.wrong} wrong elements: {_between(proof, run)}. Suspected: "
                f"{_reasons(suspects)}"
            )
            yield _finding(proof, "wrong", seen, _remedies(suspects), ACS_SOURCE)


def failed(proof: Proof) -> Iterator[Finding]:
    """What NCCL or PyTorch refuses, or dies of."""
    texts: dict[tuple[str, str], list[Run]] = {}
    for run in proof.runs:
        if run.outcome == "failed" and run.collective != "start":
            texts.setdefault((run.collective, run.text), []).append(run)
    for (collective, text), runs in texts.items():
        between = "; ".join(_between(proof, run) for run in runs)
        seen = f"{_told(collective)} failed: {between}: {text}"
        yield _finding(proof, "failed", seen, "Correct what it says; the log has NCCL's own words", HERE)


def unreached(proof: Proof) -> Iterator[Finding]:
    """What was not tried is not proven."""
    left = [run.ranks for run in proof.runs if run.outcome == "unreached"]
    if left:
        named = "; ".join(dict.fromkeys(_named(proof, ranks) for ranks in left))
        seen = f"{len(left)} collectives were not tried to the end within {proof.limits[1]:g} s: {named}"
        remedy = "Mend what hung before, or raise nccl_proof_timeout"
        yield _finding(proof, "unreached", seen, remedy, HERE)


def remaining(proof: Proof) -> Iterator[Finding]:
    """The kernel ends no process that waits in the driver."""
    if proof.left:
        pids = ", ".join(map(str, proof.left))
        seen = f"The processes {pids} were killed and did not end: they wait in the kernel"
        yield _finding(proof, "remaining", seen, "Search the kernel log for NVRM and Xid, and reboot the node", HERE)


def slow(proof: Proof) -> Iterator[Finding]:
    """A link far below what it is specified for: trained to fewer lanes, redirected, or shared with something else."""
    if not proof.peers:
        return  # through the node's memory, whose speed nobody knows
    told: dict[tuple[float, float, str], list[str]] = {}
    for run in _measured(proof):
        if run.size < LEAST_SIZE or (run.transport and "P2P" not in run.transport):
            continue  # or not over the link, which ``detour`` tells
        pairs = [(a, b) for a in run.ranks for b in run.ranks if a < b]
        speed = min((one for pair in pairs if (one := expected(proof.hardware, pair))), default=None)
        if not speed:
            continue
        share = _least_share(proof.hardware.links[run.pair]) if len(pairs) == 1 else ALL_SHARE
        if run.bandwidth < share * speed:
            carried = f"{_between(proof, run)} {run.collective} {run.bandwidth / 1e9:.1f} GB/s"
            told.setdefault((speed, share, _slow_remedy(proof, run)), []).append(carried)
    for (speed, share, remedy), runs in told.items():
        seen = (
            f"Less than {share:.0%} of the {speed / 1e9:.0f} GB/s that the links are specified for: {'; '.join(runs)}"
        )
        yield _finding(proof, "slow", seen, remedy, SPEED_SOURCE, "warning")


def odd(proof: Proof) -> Iterator[Finding]:
    """A pair that is much slower than others that are linked alike, whatever they are specified for."""
    classes: dict[tuple[str, str], list[Run]] = {}
    for run in _measured(proof):
        if len(run.ranks) == 2 and (word := proof.hardware.links.get(run.pair)):
            classes.setdefault((run.collective, word), []).append(run)
    for (collective, word), runs in classes.items():
        for run in runs:
            others = [other.bandwidth for other in runs if other is not run]
            if len(others) >= 2 and run.bandwidth < ODD * statistics.median(others):
                seen = (
                    f"{_told(collective)} carried {run.bandwidth / 1e9:.1f} GB/s, and "
                    f"{statistics.median(others) / 1e9:.1f} between other GPUs that are {word} apart: "
                    f"{_between(proof, run)}"
                )
                yield _finding(proof, "odd", seen, _slow_remedy(proof, run), SPEED_SOURCE, "warning")


def detour(proof: Proof) -> Iterator[Finding]:
    """GPUs that are to reach each other, and data that goes through the node's memory all the same."""
    if not proof.peers:
        return
    level = proof.environment.get("NCCL_P2P_LEVEL", "")
    around = {
        run.pair: run.transport
        for run in _measured(proof)
        if len(run.ranks) == 2 and run.transport and "P2P" not in run.transport
        if proof.hardware.links.get(run.pair, "")[:2] in _REACH.get(level, _REACH["PXB"])
    }
    if around:
        named = "; ".join(f"{_link(proof, pair)} through {transport}" for pair, transport in around.items())
        seen = f"NCCL does not use peer to peer between GPUs that are close enough for it: {named}"
        remedy = "Look at nvidia-smi topo -p2p r and at NCCL's words, with NCCL_DEBUG=INFO, on why"
        yield _finding(proof, "detour", seen, remedy, ACS_SOURCE, "warning")


RULES = (not_started, hung, wrong, failed, unreached, remaining, slow, odd, detour)


def judge(proof: Proof) -> list[Finding]:
    """All that is wrong or worth knowing."""
    return [finding for rule in RULES for finding in rule(proof)]


def all_passed(proof: Proof) -> bool:
    """Whether the collectives of all ranks went well."""
    whole = [run for run in proof.runs if len(run.ranks) == len(proof.ranks) and run.collective in COLLECTIVES]
    return bool(whole) and all(run.outcome == "passed" for run in whole)


# Records.


def identity(
    *,
    backend: str,
    ranks: Sequence[int],
    versions: Mapping[str, str],
    environment: Mapping[str, str],
    hardware: Hardware,
    sizes: Sequence[int],
) -> dict[str, Any]:
    """All that a proof depends on; another reading, and the node is proven again."""
    states = [state for index in ranks if (state := gpu(hardware, index))] if backend == "nccl" else []
    return {
        "format": FORMAT,
        "backend": backend,
        "ranks": list(ranks),
        "driver": hardware.driver.version if states else "",
        "cards": [state.product for state in states],
        "links": {
            f"{first}-{second}": word
            for (first, second), word in sorted(hardware.links.items())
            if states and first in ranks and second in ranks
        },
        "iommu": hardware.kernel.iommu if states else "",
        "acs": sorted({bridge.address for state in states for bridge in state.bridges if _redirects(bridge.acs)}),
        "versions": dict(sorted(versions.items())),
        "environment": dict(sorted(environment.items())),
        "sizes": list(sizes),
    }


def digest(identified: Mapping[str, Any]) -> str:
    """Sixteen hex digits of it."""
    return hashlib.sha256(json.dumps(identified, sort_keys=True).encode()).hexdigest()[:16]


def nccl_variables(environment: Mapping[str, object]) -> dict[str, str]:
    """Of an instance's environment, what NCCL or PyTorch's use of it reads."""
    wanted = re.compile(r"(TORCH_)?NCCL_|CUDA_VISIBLE_DEVICES$|CUDA_DEVICE_ORDER$")
    return {name: str(value) for name, value in environment.items() if wanted.match(name)}


def summary(proof: Proof) -> dict[str, Any]:
    """The runs for people and programs: GB/s by group, each with its link."""
    groups: dict[tuple[int, ...], dict[str, Any]] = {}
    for run in proof.runs:
        if run.collective not in COLLECTIVES and run.outcome == "passed":
            continue
        told = groups.setdefault(run.ranks, {})
        if len(run.ranks) == 2:
            told["link"] = proof.hardware.links.get(run.pair, "")
        if run.transport:
            told["transport"] = run.transport
        one: dict[str, Any] = {"outcome": run.outcome}
        if run.seconds:
            speeds = [bus_bandwidth(run.collective, len(run.ranks), run.size, seconds) for seconds in run.seconds]
            one["bytes"] = run.size
            one["gb_per_second"] = round(run.bandwidth / 1e9, 2)
            one["range"] = [round(min(speeds) / 1e9, 2), round(max(speeds) / 1e9, 2)]
        if run.text:
            one["text"] = run.text
        told[run.collective] = one
    return {"-".join(map(str, ranks)): told for ranks, told in groups.items()}


def runs_to_dicts(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(run) for run in runs]


def renamed(runs: Sequence[Run], names: Sequence[int]) -> tuple[Run, ...]:
    """Runs of ranks 0, 1, 2, … by the GPUs that these are."""
    return tuple(
        replace(
            run,
            ranks=tuple(names[rank] for rank in run.ranks),
            states={names[rank]: state for rank, state in run.states.items()},
        )
        for run in runs
    )


def chosen(plan: Mapping[str, Any], there: Sequence[int]) -> list[int] | None:
    """Which of the GPUs that are there an instance uses: of those that its plan lets it see, as many as its layout has,
    from ``--base-gpu-id`` on, one in ``--gpu-id-step``. None where the plan names them otherwise than by number.
    """
    listed = plan["environment"].get("CUDA_VISIBLE_DEVICES")
    visible = list(there)
    if listed is not None:
        words = [word.strip() for word in str(listed).split(",") if word.strip()]
        if not all(word.isdecimal() for word in words):
            return None
        visible = [number for number in map(int, words) if number in there]
    given = {argument[0]: argument[1] for argument in plan.get("arguments", ()) if len(argument) == 2}
    begin, step = (int(given.get(flag, default)) for flag, default in (("--base-gpu-id", 0), ("--gpu-id-step", 1)))
    return visible[begin :: max(step, 1)][: (plan.get("layout") or {}).get("gpus")]


def read_record(path: Path) -> dict[str, Any]:
    """A record; empty where none that can be read lies there."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def held(hardware: Hardware, ranks: Sequence[int], record: Mapping[str, Any], unit: str = "") -> Finding | None:
    """That other processes hold these GPUs, which a proof would disturb, and what is known from before.

    ``unit``  the instance's, where it runs or is about to: before it holds a GPU it measures how much memory is free
    """
    holders = {
        process.unit or f"process {process.pid} ({process.name})": state.index
        for index in ranks
        if (state := gpu(hardware, index))
        for process in state.processes
    }
    seen = f"{', '.join(holders)} hold GPUs of the instance" if holders else ""
    if unit and not any(process.unit == unit for state in hardware.gpus for process in state.processes):
        seen = (
            f"{seen}{' and ' if seen else ''}{unit} runs or is about to, and nvidia-smi tells of no GPU that it holds"
        )
    if not seen:
        return None
    before = "no proof of these is recorded"
    if record:
        before = f"the last proof, of {record.get('when')}, {'passed' if record.get('passed') else 'failed'}"
    seen = f"{seen}, so that nothing was run; {before}"
    return Finding("collectives.held", "info", seen, "Stop them and run again to have it proven", HERE)


def unnumbered(plan: Mapping[str, Any]) -> Finding:
    """That nobody can tell which GPUs these are, or whether others hold them."""
    listed = plan["environment"]["CUDA_VISIBLE_DEVICES"]
    seen = f"CUDA_VISIBLE_DEVICES is {listed}: GPUs that are not named by number, so that nothing was run"
    remedy = "Set sglang_server_gpus to their numbers in the place of CUDA_VISIBLE_DEVICES"
    return Finding("collectives.unnumbered", "info", seen, remedy, HERE)


# What a hang or a wrong sum comes from.


def _reasons(suspects: Sequence[tuple[str, str]]) -> str:
    return "; ".join(reason for reason, _remedy in suspects)


def _remedies(suspects: Sequence[tuple[str, str]]) -> str:
    text = ", or ".join(dict.fromkeys(remedy for _reason, remedy in suspects))
    return text[:1].upper() + text[1:]


def _suspects(proof: Proof, runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Reasons that these runs of one transport have in common, each with what to do about it."""
    transport = runs[0].transport
    states = {rank: state for run in runs for rank, state in run.states.items() if state in ("T", "D")}
    if states:
        return _of_processes(proof, states)
    if proof.backend != "nccl":
        return [("nothing on this node explains it", f"read the log {proof.log}".rstrip())]
    if not proof.peers or (transport and "P2P" not in transport):
        reason = f"not peer to peer, as the data goes through {transport or 'shared memory'} already"
        return [(reason, "look at the free space of /dev/shm, and at NCCL's words in the log")]
    pairs = sorted({(a, b) for run in runs for a in run.ranks for b in run.ranks if a < b})
    states_of = _states_of(proof, sorted({rank for pair in pairs for rank in pair}))
    if all(proof.hardware.links.get(pair, "").startswith("NV") for pair in pairs):
        return _of_nvlink(states_of)
    return _of_pcie(proof, pairs, states_of)


def _of_processes(proof: Proof, states: Mapping[int, str]) -> list[tuple[str, str]]:
    found = []
    if stopped := [rank for rank, state in states.items() if state == "T"]:
        found.append((f"the process for {_named(proof, stopped)} was stopped", "find out what stops it"))
    if waits := [rank for rank, state in states.items() if state == "D"]:
        remedy = "search the kernel log for NVRM and Xid, and reboot the node"
        found.append((f"the process for {_named(proof, waits)} waits in the kernel", remedy))
    return found


def _of_nvlink(states: Sequence[GpuState]) -> list[tuple[str, str]]:
    remedy = "look at nvidia-smi nvlink -s and at the state of nvidia-fabricmanager"
    reasons = []
    for state in states:
        if state.nvlinks and state.nvlinks[0] < state.nvlinks[1]:
            reasons.append(f"{state.nvlinks[0]} of {state.nvlinks[1]} NVLinks of GPU {state.index} are up")
        if state.fabric[0] and state.fabric != ("Completed", "Success"):
            reasons.append(f"the fabric of GPU {state.index} is {' and '.join(state.fabric)}")
    return [(reason, remedy) for reason in reasons or ["NVLink, though nvidia-smi says nothing against it"]]


def _of_pcie(proof: Proof, pairs: Sequence[tuple[int, int]], states: Sequence[GpuState]) -> list[tuple[str, str]]:
    hardware = proof.hardware
    found = []
    redirecting = {
        bridge.address: " ".join(f"{flag}+" for flag in bridge.acs or ())
        for state in states
        for bridge in state.bridges
        if _redirects(bridge.acs)
    }
    if redirecting:
        ports = ", ".join(f"{address} ({flags})" for address, flags in redirecting.items())
        found.append((f"ACS sends peer to peer through the root complex at {ports}", "switch ACS off in the firmware"))
    if hardware.kernel.iommu == "translated":
        reason = "the IOMMU translates what devices send (no iommu=pt on the kernel's command line)"
        found.append((reason, "boot with iommu=pt"))
    for pair in pairs:
        words = hardware.peers.get(pair, ("OK", "OK"))
        if words != ("OK", "OK") and any(words):
            reason = f"nvidia-smi topo -p2p says {'/'.join(words)} of {_link(proof, pair)}"
            found.append((reason, "look up what that means in nvidia-smi topo -h"))
    level = proof.environment.get("NCCL_P2P_LEVEL")
    if not found and level:
        reason = f"NCCL_P2P_LEVEL={level} has GPUs reach each other over this link, which may not carry it"
        found.append((reason, "set sglang_server_nccl_p2p_level lower"))
    if not found:
        found.append(("peer to peer, though the node's facts say nothing against it", "read NCCL's words in the log"))
    *others, (reason, remedy) = found
    return [*others, (reason, f"{remedy}, or set {FALLBACK}")]


def _redirects(acs: Sequence[str] | None) -> bool:
    """Whether a bridge sends requests of one device to another up instead (``ReqRedir``), or their answers."""
    return any(flag.rstrip("+") in ("ReqRedir", "CmpltRedir") for flag in acs or ())


def _slow_remedy(proof: Proof, run: Run) -> str:
    narrow = [
        f"GPU {state.index} has {state.pcie_width} of {state.pcie_width_max} lanes"
        for state in _states_of(proof, run.ranks)
        if state.pcie_width and state.pcie_width_max and state.pcie_width < state.pcie_width_max
    ]
    if narrow:
        return f"Seat the card again or choose another slot: {', '.join(narrow)}"
    if any(_redirects(bridge.acs) for state in _states_of(proof, run.ranks) for bridge in state.bridges):
        return "Switch ACS off in the firmware, and run again"
    return "Look at nvidia-smi -q -d PCI and nvidia-smi nvlink -s while it runs, and that nothing else uses the link"


def _least_share(word: str) -> float:
    return SHARES["NV" if word.startswith("NV") else word]


def _measured(proof: Proof) -> list[Run]:
    return [run for run in proof.runs if run.outcome == "passed" and run.seconds]


def _states_of(proof: Proof, ranks: Sequence[int]) -> list[GpuState]:
    return [state for index in ranks if (state := gpu(proof.hardware, index))]


def _named(proof: Proof, ranks: Sequence[int]) -> str:
    word = "GPU" if proof.backend == "nccl" else "rank"
    return f"{word}{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _link(proof: Proof, pair: tuple[int, int]) -> str:
    word = proof.hardware.links.get(pair, "")
    return f"pair {pair[0]}-{pair[1]}{f' ({word})' if word and proof.backend == 'nccl' else ''}"


def _between(proof: Proof, run: Run) -> str:
    return _link(proof, run.pair) if len(run.ranks) == 2 else f"all of {_named(proof, run.ranks)}"


def _over(run: Run) -> str:
    return f" over {run.transport}" if run.transport else ""


def _states(run: Run) -> str:
    told = ", ".join(sorted(set(run.states.values()) - {""}))
    return f" (state {told})" if told else ""


def _told(collective: str) -> str:
    if collective in COLLECTIVES:
        return collective
    return {"join": "Making the communicator", "leave": "Ending the communicator"}.get(collective, collective)


def _finding(  # noqa: PLR0917 # as Finding has them
    proof: Proof, fault: str, seen: str, remedy: str, source: str, severity: Severity = "error"
) -> Finding:
    kept = f" (log: {proof.log})" if proof.log and severity == "error" else ""
    return Finding(f"collectives.{fault}", severity, f"{seen}{kept}", remedy, source)
