# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The activations of an instance: the wanted one, the last that was proven to answer, and the proven one before it.

An activation is a plan and a unit. ``/etc/sglang/<instance>/plan.json`` and the instance's unit are the wanted one; the
folders ``good`` and ``previous`` beside the plan hold the proven ones. A slot moves only after a proof.
The API key is in no slot: whichever activation has one is started with the newest, as a key is changed to be rid of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils import health, wheels
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding

FOLDER = Path("/etc/sglang")
PLAN = "plan.json"
GOOD, PREVIOUS = "good", "previous"

FORWARD = "Run site.yml with the settings that are wanted"

# While somebody goes back: the identity of the activation that is the goal.
GOAL = ".former"

# Of a plan, what it takes to start the instance from it and to ask it for a text.
_TEXTS = ("digest", "url", "served_name", "release_path", "cuda_home", "model_path")
_NEEDED = ("digest", "url", "served_name", "release_path", "cuda_home", "model_path", "start_timeout", "stop_timeout")


@dataclass(frozen=True)
class Activation:
    """A plan and a unit, byte for byte as they lie on the node.

    ``written``  when the unit was written, nanoseconds since the epoch: a process that is older does not run from it
    """

    plan: bytes
    unit: bytes
    written: int = 0

    def same_as(self, other: Activation | None) -> bool:
        """Whether both say the same, whenever they were written."""
        return other is not None and (self.plan, self.unit) == (other.plan, other.unit)

    @property
    def settings(self) -> dict[str, Any]:
        """The plan; empty for one that cannot be read or lacks what a start needs."""
        try:
            plan = json.loads(self.plan)
        except (ValueError, RecursionError):
            return {}
        if not isinstance(plan, dict) or any(name not in plan for name in _NEEDED):
            return {}
        return plan if all(isinstance(plan[name], str) and "\0" not in plan[name] for name in _TEXTS) else {}

    @property
    def secrets(self) -> str:
        """Path of the file that the plan takes its API key from; empty where it has none."""
        return str(self.settings.get("secrets") or "")

    @property
    def identity(self) -> str:
        """Of plan and unit; the plan's digest alone does not tell two units apart."""
        return hashlib.sha256(self.plan + b"\0" + self.unit).hexdigest()

    @property
    def digest(self) -> str:
        return str(self.settings.get("digest", ""))

    @property
    def name(self) -> str:
        """What a reader knows it by: the release's folder and the plan's digest."""
        return f"{Path(str(self.settings.get('release_path', ''))).name} (plan {self.digest})"


@dataclass(frozen=True)
class Slots:
    """What lies on the node of one instance; none where a plan or a unit is missing.

    ``current``  the wanted activation, proven or not
    ``goal``     identity of the activation that an interrupted run was going back to; empty where none was
    """

    current: Activation | None
    good: Activation | None
    previous: Activation | None
    goal: str = ""

    @property
    def proven(self) -> Activation | None:
        """The activation that was proven last. A ``record`` that is killed half-way leaves it in ``previous``."""
        return self.good or self.previous

    @property
    def former(self) -> Activation | None:
        """The activation that was proven last before the current one: ``good`` where the current one is unproven.

        Where a run was interrupted on the way back to the current one, that one: the next run ends what it began.
        """
        for slot in (self.good, self.previous):
            if slot and self.current and slot.identity == self.goal and slot.plan == self.current.plan:
                return slot
        if self.good and not self.good.same_as(self.current):
            return self.good
        return None if self.previous is None or self.previous.same_as(self.current) else self.previous


def folder(instance: str) -> Path:
    """Folder of the instance's plan and slots."""
    return FOLDER / instance


def read(instance: str) -> Slots:
    """Read plan, unit and slots. Raises OSError."""
    here, unit = folder(instance), health.unit_name(instance)
    good, previous = (_read(here / slot / PLAN, here / slot / unit) for slot in (GOOD, PREVIOUS))
    try:
        goal = (here / GOAL).read_text(encoding="ascii")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
        goal = ""
    return Slots(_read(here / PLAN, health.unit_file(instance)), good, previous, goal)


def aim(instance: str, activation: Activation) -> None:
    """Remember which activation somebody goes back to, before ``restore``, until it is proven or given up."""
    wheels.write_atomically(folder(instance) / GOAL, activation.identity)


def arrive(instance: str) -> None:
    """Forget what ``aim`` remembered."""
    (folder(instance) / GOAL).unlink(missing_ok=True)


def record(instance: str) -> None:
    """The current activation has answered: it becomes ``good``, and what was good becomes ``previous``.

    Killed at any point, ``Slots.proven`` is what it was or what is recorded, and another call ends it.
    """
    here, unit = folder(instance), health.unit_name(instance)
    current = read(instance).current
    if current is None:
        raise FileNotFoundError(f"{here / PLAN} or {health.unit_file(instance)} is not there")
    fresh, old = here / f".{GOOD}.new", here / f".{PREVIOUS}.old"
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir()
    fresh.chmod(0o755)
    wheels.write_atomically(fresh / PLAN, current.plan)
    _write_unit(fresh / unit, current)
    if (here / GOOD).exists():
        if (here / PREVIOUS).exists():
            (here / PREVIOUS).rename(old)
        (here / GOOD).rename(here / PREVIOUS)
    fresh.rename(here / GOOD)
    shutil.rmtree(old, ignore_errors=True)


def restore(instance: str, activation: Activation) -> None:
    """Make an activation the current one. The unit keeps its time: a process that runs from it is not older than it."""
    wheels.write_atomically(folder(instance) / PLAN, activation.plan)
    _write_unit(health.unit_file(instance), activation)


def judge(activation: Activation) -> list[Finding]:
    """Whether an activation could be started again: what its plan refers to must still be there.

    The folder of its kernel cache need not be: systemd makes it, and the kernels are compiled again.
    """
    plan = activation.settings
    if not plan:
        seen = "The plan that was kept of the former activation cannot be read"
        return [Finding("activation.damaged", "error", seen, FORWARD)]
    there = {
        "release": wheels.read_manifest(plan["release_path"]) is not None,
        "toolkit": os.path.isdir(plan["cuda_home"]),
        "model": os.path.isdir(plan["model_path"]),
        "secrets": not activation.secrets or os.path.isfile(activation.secrets),
    }
    paths = {"release": plan["release_path"], "toolkit": plan["cuda_home"], "model": plan["model_path"]}
    paths["secrets"] = activation.secrets
    return [
        Finding(f"activation.{what}_gone", "error", f"{activation.name} lacks its {what}: {paths[what]}", FORWARD)
        for what, found in there.items()
        if not found
    ]


def no_former(instance: str) -> Finding:
    """There is nothing to go back to on request."""
    seen = f"No activation of {instance} was proven before the current one"
    return Finding("activation.none", "error", seen, FORWARD)


def is_back(activation: Activation, *, running: bool, done: bool = True) -> Finding:
    """What was put back, or would be."""
    state = ("was" if done else "would be") + " put back" + ("" if running else " and, as before, does not run")
    remedy = "Correct the settings before the next run of site.yml: it goes forward to them again"
    return Finding("activation.back", "info", f"{activation.name} {state}", remedy)


def already_proven(activation: Activation) -> Finding:
    """What failed is what was proven last: going back to what was before is for the user to decide."""
    return Finding(
        "activation.proven",
        "info",
        f"{activation.name} is itself what was proven last, so nothing was put back",
        "Correct what the journal says, or run playbooks/rollback.yml for the activation before it",
    )


def stopped(instance: str) -> Finding:
    """A switch has failed and there is nothing to put back."""
    return Finding(
        "activation.stopped",
        "info",
        f"{instance} has no proven activation that could be put back, so it was stopped; plan and unit are left",
        "Correct what the journal says, and run site.yml again",
    )


def runs_from_another(unit: health.UnitState, current: Activation | None, wanted: Activation) -> bool:
    """Whether the process was started from the current unit, and that says something else than the wanted one.

    The plan's digest alone does not tell: two units may carry one plan.
    """
    if current is None or current.unit == wanted.unit or not unit.main_pid:
        return False
    return unit.started >= current.written / 1e9


def _read(plan: Path, unit: Path) -> Activation | None:
    try:
        return Activation(plan.read_bytes(), unit.read_bytes(), unit.stat().st_mtime_ns)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError:  # damaged, which ``judge`` tells
        return Activation(b"", b"")


def _write_unit(path: Path, activation: Activation) -> None:
    wheels.write_atomically(path, activation.unit)
    os.utime(path, ns=(activation.written, activation.written))
