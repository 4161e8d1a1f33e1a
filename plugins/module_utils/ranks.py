# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Processes that may hang: one long-lived rank a GPU, asked within limits, ended for certain."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

PARTNER = 3.0
"""Seconds that the others of a group have once one of them has failed: they wait for it in vain."""

MERCY = 5.0
"""Seconds that a killed process may take to end; one that waits in the kernel may take for ever."""

Group = tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """What came of a request to one rank.

    ``value``  what it answered; empty where it did not
    ``fault``  why it did not: ``silent``, ``error``, ``ended``; empty where it did
    ``text``   of the error, or with what status it ended
    ``state``  of a silent process, by its letter in ``/proc/<pid>/stat``
    """

    value: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""
    text: str = ""
    state: str = ""


def state_of(pid: int) -> str:
    """Letter of a process's state: ``R`` runs, ``S`` and ``D`` wait, ``T`` was stopped; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _kill(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a group, with its group; not one that has ended, whose number may be another's."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _remains(process: subprocess.Popen[Any], until: float) -> int | None:
    """The pid of a killed process that the kernel does not let end, at that time of the monotonic clock."""
    try:
        process.wait(max(0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return process.pid
    return None


class Ranks:
    """One process a rank, each the leader of a process group of its own.

    ``command``      what starts a rank, but for its number
    ``count``        how many; a rank is called by its number
    ``environment``  theirs, whole
    ``logs``         folder of what each prints to standard error, ``rank-<number>.log``
    """

    def __init__(self, command: Sequence[str], count: int, environment: Mapping[str, str], logs: Path) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self._logs = logs
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.count = count
        self.restarts = 0
        self.left: list[int] = []
        """Processes that did not end when they were killed."""
        self.lost: set[int] = set()
        """Ranks that cannot be started again, as their process did not end."""

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.kill(list(self._processes))

    @property
    def alive(self) -> set[int]:
        """The ranks that have a process."""
        return set(self._processes)

    @property
    def pids(self) -> dict[int, int]:
        """Rank to process."""
        return {rank: process.pid for rank, process in self._processes.items()}

    def start(self, rank: int) -> None:
        """Start a rank that has no process. Raises OSError."""
        with self.log(rank).open("ab") as log:
            # pylint: disable-next=ansible-bad-function # the core knows no AnsibleModule
            self._processes[rank] = subprocess.Popen(
                [*self._command, str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                env=self._environment,
                start_new_session=True,
            )

    def log(self, rank: int) -> Path:
        """What a rank prints."""
        return self._logs / f"rank-{rank}.log"

    def kill(self, ranks: Iterable[int]) -> None:
        """End ranks for certain, all at once; what cannot be ended is kept in ``left``."""
        ending = {rank: self._processes.pop(rank) for rank in ranks if rank in self._processes}
        for process in ending.values():
            _kill(process)
        until = time.monotonic() + MERCY
        for rank, process in ending.items():
            for stream in (process.stdin, process.stdout):
                if stream:
                    with contextlib.suppress(OSError):
                        stream.close()
            pid = _remains(process, until)
            if pid is not None:
                self.left.append(pid)
                self.lost.add(rank)

    def ask(
        self, groups: Iterable[Group], request: Callable[[Group, int], Mapping[str, Any]], limit: float
    ) -> dict[int, Answer]:
        """Ask all ranks of some groups at once, and wait ``limit`` seconds at most.

        ``request``  group and rank to what that rank is asked

        Of a group in which a rank fails, every rank is ended before this returns: the others can do no more without it.
        """
        groups = list(groups)
        deadlines = dict.fromkeys(groups, time.monotonic() + limit)
        answers: dict[int, Answer] = {}
        waiting = {rank: group for group in groups for rank in group}
        read = dict.fromkeys(waiting, b"")

        def settle(rank: int, answer: Answer) -> None:
            group = waiting.pop(rank)
            answers[rank] = answer
            selector.unregister(self._output(rank))
            if answer.fault:
                deadlines[group] = min(deadlines[group], time.monotonic() + PARTNER)

        with selectors.DefaultSelector() as selector:
            for group in groups:
                for rank in group:
                    selector.register(self._output(rank), selectors.EVENT_READ, rank)
                    self._send(rank, request(group, rank))
            while waiting:
                patience = min(deadlines[group] for group in waiting.values()) - time.monotonic()
                for key, _events in selector.select(max(patience, 0)):
                    rank = key.data
                    read[rank] += os.read(key.fd, 65536) or b"\0"
                    if read[rank].endswith(b"\0"):
                        settle(rank, Answer(fault="ended", text=self._status(rank)))
                    elif read[rank].endswith(b"\n"):
                        settle(rank, _answer(read[rank]))
                for rank, group in list(waiting.items()):
                    if time.monotonic() >= deadlines[group]:
                        settle(rank, Answer(fault="silent", state=state_of(self._processes[rank].pid)))
        self.kill(rank for group in groups if any(answers[each].fault for each in group) for rank in group)
        return answers

    def _output(self, rank: int) -> int:
        # Both pipes were asked for.
        return cast(IO[bytes], self._processes[rank].stdout).fileno()

    def _send(self, rank: int, request: Mapping[str, Any]) -> None:
        stream = cast(IO[bytes], self._processes[rank].stdin)
        # One that has ended is told by its output.
        with contextlib.suppress(BrokenPipeError):
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()

    def _status(self, rank: int) -> str:
        process = self._processes[rank]
        try:
            status = process.wait(MERCY)
        except subprocess.TimeoutExpired:
            return "closed its output"
        return f"ended by signal {-status}" if status < 0 else f"ended with status {status}"


def _answer(line: bytes) -> Answer:
    try:
        value = json.loads(line)
    except ValueError:
        return Answer(fault="error", text=f"answered {line[:200]!r}")
    return Answer(fault="error", text=str(value["error"])) if "error" in value else Answer(value)


@dataclass(frozen=True)
class Done:
    """How a program ended: ``status``, None where it was ended at its limit; what it printed; and how it was then."""

    status: int | None
    output: str
    state: str = ""
    left: int | None = None


def bounded(command: Sequence[str], environment: Mapping[str, str], limit: float, log: Path) -> Done:
    """Run a program for ``limit`` seconds at most; what it prints is kept in ``log``. Raises OSError."""
    with log.open("wb") as output:
        # pylint: disable-next=ansible-bad-function # the core knows no AnsibleModule
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=dict(environment),
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(max(limit, 0))
            state = ""
        except subprocess.TimeoutExpired:
            status, state = None, state_of(process.pid)
            _kill(process)
        left = _remains(process, time.monotonic() + MERCY)
    return Done(status, log.read_text(encoding="utf-8", errors="replace"), state, left)


def segments(folder: Path = Path("/dev/shm")) -> dict[str, int]:  # noqa: S108 # where NCCL makes them
    """NCCL's segments of shared memory: name to owner."""
    found = {}
    for path in folder.glob("nccl-*"):
        with contextlib.suppress(OSError):
            found[path.name] = path.lstat().st_uid
    return found


def sweep(before: Iterable[str], owner: int, folder: Path = Path("/dev/shm"), proc: Path = Path("/proc")) -> list[str]:  # noqa: S108
    """Remove the segments that killed ranks left: new since ``before``, of this owner, and in nobody's memory."""
    known = set(before)
    new = [name for name, uid in segments(folder).items() if uid == owner and name not in known]
    if not new:
        return []
    mapped = set()
    for maps in proc.glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            text = maps.read_text(encoding="utf-8", errors="replace")
            mapped |= {name for name in new if f"{folder}/{name}" in text}
    removed = sorted(set(new) - mapped)
    for name in removed:
        (folder / name).unlink(missing_ok=True)
    return removed
