# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The order of a proof: every pair of ranks, then all of them, each step within a limit, and all within another.

Where there are two ranks, the pair is all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils.collectives import (
    COLLECTIVES,
    Outcome,
    Run,
    parse_test,
    rounds,
    transports,
)
from ansible_collections.inference.sglang.plugins.module_utils.ranks import Answer, Group, Ranks, bounded

START = 120.0
"""Seconds that the processes have to load PyTorch and to open their GPUs: from a slow disk, all at once."""

PROGRAMS: Mapping[str, str] = {"all_reduce": "all_reduce_perf", "send_recv": "sendrecv_perf"}
"""Of nccl-tests."""

_OUTCOMES: Mapping[str, Outcome] = {"silent": "hung", "error": "failed", "ended": "failed"}


class Clock:
    """What is left of a limit in seconds."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self, most: float) -> float:
        """At most ``most``, never below 0."""
        return max(0.0, min(most, self._end - time.monotonic()))


@dataclass
class Prover:
    """Proves the ranks of one node with long-lived processes.

    ``stores``   an empty folder that the ranks may write to
    ``sizes``    bytes that are checked; the largest is measured
    ``step``     seconds for one request
    """

    ranks: Ranks
    stores: Path
    sizes: Sequence[int]
    repeats: int
    step: float
    clock: Clock
    started: dict[str, Any] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    _cut: bool = False

    def prove(self) -> list[Run]:
        """All pairs, then all ranks. What cannot be reached within the limit is told as such."""
        self._begin(range(self.ranks.count))
        if not self.runs:
            every = tuple(range(self.ranks.count))
            for pairs in rounds(self.ranks.count):
                self._round(pairs)
            if self.ranks.count > 2:
                self._round([every])
        return self.runs

    def _begin(self, ranks: Iterable[int]) -> None:
        """Start ranks; what cannot start is told."""
        wanted = [(rank,) for rank in ranks]
        for (rank,) in wanted:
            self.ranks.start(rank)
        for (rank,), answer in self._ask(wanted, {"do": "start"}, START).items():
            if answer[rank].fault:
                self._fail((rank,), "start", answer)
            else:
                self.started = dict(answer[rank].value)

    def _round(self, groups: Sequence[Group]) -> None:
        """Groups without a common rank: made and checked at the same time, then measured one after the other.

        Alone, as pairs may share a switch or a root port, and some of those collapse under several
        (local-inference-lab/rtx6kpro, hardware/collapse-report.md).
        """
        dead = {rank for group in groups for rank in group} - self.ranks.alive - self.ranks.lost
        if dead and self.clock.left(1):
            self.ranks.restarts += len(dead)
            self._begin(sorted(dead))
        able = [group for group in groups if set(group) <= self.ranks.alive and self.clock.left(1)]
        self._unreached(group for group in groups if group not in able)
        begun = {group: [self._printed(rank) for rank in group] for group in able}
        stores = {group: self.stores / f"{len(self.runs)}-{'-'.join(map(str, group))}" for group in able}
        able = self._all(able, "join", {"do": "join"}, stores)
        checked = []
        for collective in COLLECTIVES:
            for size in self.sizes:
                able = self._all(able, collective, {"do": "check", "collective": collective, "size": size})
        for group in able:
            checked += self._measured(group)
        able = self._all(checked, "leave", {"do": "leave"})
        for group, offsets in begun.items():
            self._say_transport(group, offsets)

    def _measured(self, group: Group) -> list[Group]:
        """The group again where it could be measured."""
        for collective in COLLECTIVES:
            size = max(self.sizes)
            asked = {"do": "measure", "collective": collective, "size": size, "repeats": self.repeats}
            if not self.clock.left(1):
                self._unreached([group])
                self.ranks.kill(group)
                return []
            answers = self._ask([group], asked, self.step)[group]
            if any(answer.fault for answer in answers.values()):
                self._fail(group, collective, answers)
                return []
            # A collective is over where the last rank has it.
            slowest = [max(times) for times in zip(*(one.value["seconds"] for one in answers.values()), strict=True)]
            self.runs.append(Run(ranks=group, collective=collective, size=size, seconds=tuple(slowest)))
        return [group]

    def _all(
        self,
        groups: Sequence[Group],
        collective: str,
        asked: Mapping[str, Any],
        stores: Mapping[Group, Path] | None = None,
    ) -> list[Group]:
        """Those groups that do it well; what the others did is told."""
        well = []
        for group, answers in self._ask(groups, asked, self.step, stores).items():
            mistaken = sum(int(answer.value.get("wrong", 0)) for answer in answers.values())
            if any(answer.fault for answer in answers.values()):
                self._fail(group, collective, answers)
            elif mistaken:
                self.runs.append(Run(ranks=group, collective=collective, outcome="wrong", wrong=mistaken))
                self.ranks.kill(group)
            else:
                well.append(group)
        return well

    def _ask(
        self,
        groups: Sequence[Group],
        asked: Mapping[str, Any],
        limit: float,
        stores: Mapping[Group, Path] | None = None,
    ) -> dict[Group, dict[int, Answer]]:
        def request(group: Group, rank: int) -> Mapping[str, Any]:
            meeting = {"store": str(stores[group]), "rank": group.index(rank), "ranks": len(group)} if stores else {}
            return {**asked, **meeting}

        patience = self.clock.left(limit)
        self._cut = patience < limit
        answers = self.ranks.ask(groups, request, patience)
        return {group: {rank: answers[rank] for rank in group} for group in groups}

    def _fail(self, group: Group, collective: str, answers: Mapping[int, Answer]) -> None:
        """What one rank reports tells more than that the others wait for it."""
        faults = {rank: answer for rank, answer in answers.items() if answer.fault}
        loud = [answer for answer in faults.values() if answer.fault != "silent"]
        first = next(iter(loud or faults.values()))
        if self._cut and not loud and collective != "start":
            # It had less time than a collective has, and may be none that hangs.
            self._unreached([group])
            return
        self.runs.append(
            Run(
                ranks=group,
                collective=collective,
                outcome=_OUTCOMES[first.fault],
                text=first.text,
                states={} if loud else {rank: answer.state for rank, answer in faults.items()},
            )
        )

    def _unreached(self, groups: Iterable[Group]) -> None:
        self.runs += [Run(ranks=group, collective=one, outcome="unreached") for group in groups for one in COLLECTIVES]

    def _printed(self, rank: int) -> int:
        return self.ranks.log(rank).stat().st_size

    def _say_transport(self, group: Group, offsets: Sequence[int]) -> None:
        """Add to a group's runs what NCCL said since it was made."""
        texts = []
        for rank, offset in zip(group, offsets, strict=True):
            with self.ranks.log(rank).open("rb") as log:
                log.seek(offset)
                texts.append(log.read().decode(errors="replace"))
        said = transports("\n".join(texts))
        self.runs = [replace(run, transport=said) if run.ranks == group else run for run in self.runs]


def prove_by_tests(
    *,
    programs: Mapping[str, Path],
    ranks: Sequence[int],
    size: int,
    environment: Mapping[str, str],
    prefix: Sequence[str],
    limits: tuple[float, Clock],
    logs: Path,
) -> tuple[list[Run], list[int]]:
    """The same by the programs of nccl-tests, which check what they measure; and the processes that did not end.

    ``programs``  by collective
    ``ranks``     GPUs by nvidia-smi's index
    ``prefix``    what runs a command as another user
    """
    runs: list[Run] = []
    left: list[int] = []
    step, clock = limits
    groups = [tuple(ranks[number] for number in pair) for pairs in rounds(len(ranks)) for pair in pairs]
    for group in dict.fromkeys([*groups, tuple(ranks)]):
        for collective, program in programs.items():
            if left or not clock.left(1):
                runs.append(Run(ranks=group, collective=collective, outcome="unreached"))
                continue
            own = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, group))}
            command = [*prefix, str(program), "-g", str(len(group)), "-b", str(size), "-e", str(size), "-c", "1"]
            log = logs / f"{collective}-{'-'.join(map(str, group))}.log"
            patience = clock.left(step)
            done = bounded(command, {**environment, **own}, patience, log)
            left += [done.left] if done.left else []
            if done.status is None and patience < step:
                runs.append(Run(ranks=group, collective=collective, outcome="unreached"))
            else:
                runs.append(_told(group, collective, done.status, done.output, done.state))
    return runs, left


def _told(group: Group, collective: str, status: int | None, output: str, state: str) -> Run:
    run = Run(ranks=group, collective=collective, transport=transports(output))
    if status is None:
        return replace(run, outcome="hung", states=dict.fromkeys(group, state))
    try:
        size, seconds, mistaken = parse_test(output)
    except ValueError as nothing:
        return replace(run, outcome="failed", text=f"ended with status {status}: {nothing}")
    if mistaken:
        return replace(run, outcome="wrong", wrong=mistaken)
    if status:
        last = (output.strip().splitlines() or [""])[-1]
        return replace(run, outcome="failed", text=f"ended with status {status}: {last}")
    # nccl-tests gives the time of one operation; its bandwidths follow by the same rules as here.
    return replace(run, size=size, seconds=(seconds,))
