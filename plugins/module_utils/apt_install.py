# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Installing packages whose simulation was judged, and holding what was installed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ansible_collections.inference.sglang.plugins.module_utils import apt
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, as_dicts, as_text, errors

Run = Callable[[list[str]], tuple[int, str, str]]
"""Run an argument list in the C locale: exit status, output, errors."""

_ONLY_OURS = (
    f"--option=Dir::Etc::sourcelist={apt.SOURCE}",
    "--option=Dir::Etc::sourceparts=/dev/null",
    "--option=APT::Get::List-Cleanup=0",
)
PATIENCE = 300.0
"""Seconds that another apt or dpkg is waited for: unattended-upgrades and apt-daily run at any time, also at boot."""

_LOCK = f"--option=DPkg::Lock::Timeout={PATIENCE:g}"
# apt itself waits for dpkg's lock alone: not for those of lists and archives, and apt-mark for none.
_LOCKED = re.compile(r"Could not get lock [^\n]*|dpkg: error: dpkg [^\n]*\blocked by [^\n]*")
_PAUSE = 5.0
_NOT_THERE = re.compile(
    r"Unable to locate package|has no installation candidate|Version '.*' for '.*' was not found"
    r"|unmet dependencies|not installable|not going to be installed"
)
CUDA = re.compile(
    r"^(?:cuda|libcu(?:blas|dnn|dss|fft|file|obj|pti|rand|solver|sparse|tensor)"
    r"|libnv(?:fatbin|idia|infer|jitlink|jpeg|ptxcompiler|rtc|vm)|libnpp|libnccl|nvidia|gds-tools|nsight)"
)
"""Packages of NVIDIA's repository, by their names; the distribution has libcurl, libcups, libnvme, libnvpair."""


LOCALE = {"LC_ALL": "C", "LANGUAGE": "C", "DEBIAN_FRONTEND": "noninteractive"}
"""Environment in which apt says what is parsed here, and asks nothing."""


class AptError(Exception):
    """``findings``: what stopped apt."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = list(findings)


def stop(fail: Callable[..., object], findings: Iterable[Finding]) -> None:
    """Fail with all errors among the findings, if there are any. ``fail``: ``fail_json`` of a module."""
    told = list(findings)
    if wrong := errors(told):
        fail(msg=as_text(wrong), findings=as_dicts(told))


@dataclass(frozen=True)
class Packages:
    """Installed packages of a node: versions by name, and the names of those on hold.

    ``broken``  those that dpkg has begun to install, and not finished
    """

    versions: dict[str, str]
    held: frozenset[str]
    broken: frozenset[str] = frozenset()


def installed(run: Run) -> Packages:
    """What dpkg has installed."""
    form = "--showformat=${Package}\\t${Version}\\t${db:Status-Want}\\t${db:Status-Status}\\n"
    _status, output, _complaint = run(["dpkg-query", "--show", form])
    told = [row for line in output.splitlines() if len(row := line.split("\t")) == 4]
    rows = [row for row in told if row[3] == "installed"]
    return Packages(
        {row[0]: row[1] for row in rows},
        frozenset(row[0] for row in rows if row[2] == "hold"),
        frozenset(row[0] for row in told if row[3] in ("unpacked", "half-configured", "half-installed")),
    )


def _patiently(run: Run, argv: list[str]) -> tuple[int, str, str]:
    """Run what needs a lock that another process may hold."""
    last = time.monotonic() + PATIENCE
    while True:
        status, output, error = run(argv)
        if not status or not _LOCKED.search(output + error) or time.monotonic() > last:
            return status, output, error
        time.sleep(_PAUSE)


def missing(packages: Iterable[str], node: Packages) -> list[str]:
    """Those that are not installed, or not in the version that is asked for."""
    found = []
    for package in packages:
        name, _sign, version = package.partition("=")
        have = node.versions.get(name)
        if have is None or (version and have != version):
            found.append(package)
    return found


def needed(run: Run, names: Iterable[str]) -> set[str]:
    """Installed packages that some packages depend on, directly or not, and those of these that are installed."""
    without = (f"--no-{what}" for what in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"))
    _status, output, _complaint = run(["apt-cache", "depends", "--recurse", "--installed", *without, *names])
    return {line.partition(":")[0] for line in output.splitlines() if line and line[0] not in " <"}


def lists_are_there(run: Run, names: Iterable[str]) -> bool:
    """Whether apt holds package lists of our source. ``names``: files in ``/var/lib/apt/lists``."""
    argv = ["apt-get", "indextargets", *_ONLY_OURS, "--format", "$(FILENAME)", "Created-By: Packages"]
    _status, output, _complaint = run(argv)
    wanted = [line.rpartition("/")[2] for line in output.splitlines() if line]
    return any(name.startswith(prefix) for prefix in wanted for name in names)


def update(run: Run) -> list[Finding]:
    """Read the package lists of our source alone; what apt says against it."""
    argv = ["apt-get", "update", "--quiet", *_ONLY_OURS, _LOCK, "--option=APT::Update::Error-Mode=any"]
    status, output, error = _patiently(run, argv)
    if status == 0:
        return []
    said = output + error
    if held := _LOCKED.search(said):
        return [_locked(held[0])]
    rest = Finding("apt.update", "error", f"apt-get update: {said[-300:].strip()}", "Mend what apt complains about")
    return apt.update_failed(said) or [rest]


def simulate(
    run: Run, packages: Iterable[str], *, recommends: bool = False, fresh: bool = True, newest: bool = False
) -> list[apt.Change]:
    """What an installation would do. Raises AptError where apt sees no way.

    ``fresh``   whether the package lists of our source may be read again where apt does not know a package
    ``newest``  whether they are read in any case, so that what is new is seen
    """
    if fresh and newest:
        if wrong := update(run):
            raise AptError(*wrong)
        fresh = False
    argv = ["apt-get", "install", "--simulate", *_options(recommends), *packages]
    status, output, error = run(argv)
    said = output + error
    if status and fresh and _NOT_THERE.search(said):
        if wrong := update(run):
            raise AptError(*wrong)
        return simulate(run, packages, recommends=recommends, fresh=False)
    if status:
        raise AptError(_refused("would not install", packages, said))
    return apt.changes(output)


def plan(
    run: Run, packages: Sequence[str], *, check: bool, recommends: bool = False, newest: bool = False
) -> tuple[list[apt.Change], list[Finding]]:
    """What an installation would do. Raises AptError.

    ``check``  whether this is check mode: a bare node has no package lists yet, and none are fetched
    """
    try:
        return simulate(run, packages, recommends=recommends, fresh=not check, newest=newest), []
    except AptError as error:
        if not check:
            raise
        seen = f"apt cannot tell yet what installing {' '.join(packages)} would do: {error.findings[0].seen}"
        unknown = Finding("apt.not_simulated", "info", seen, "Run without check mode to have it judged")
        return [apt.Change("Inst", name, "", "", f"Inst {name}") for name in packages], [unknown]


def install(run: Run, packages: Iterable[str], *, recommends: bool = False) -> None:
    """Install what was judged. Raises AptError."""
    keep = ("--option=Dpkg::Options::=--force-confdef", "--option=Dpkg::Options::=--force-confold")
    argv = ["apt-get", "install", "--yes", _LOCK, *keep, *_options(recommends), *packages]
    status, output, error = _patiently(run, argv)
    if status:
        raise AptError(_refused("failed to install", packages, output + error))


def remove(run: Run, names: Iterable[str], *, simulate: bool = False) -> list[apt.Change]:
    """Remove packages; the steps. Raises AptError."""
    how = ["--simulate"] if simulate else ["--yes", _LOCK]
    status, output, error = _patiently(run, ["apt-get", "remove", *how, "--allow-change-held-packages", *names])
    if status:
        raise AptError(_refused("would not remove", names, output + error))
    return apt.changes(output)


def hold(run: Run, names: Iterable[str], *, held: bool = True) -> None:
    """Hold packages, or release their holds. Raises AptError."""
    argv = ["apt-mark", "hold" if held else "unhold", *names]
    status, output, error = _patiently(run, argv)
    if status and (other := _LOCKED.search(output + error)):
        raise AptError(_locked(other[0]))
    if status:
        seen = f"{' '.join(argv)}: {(output + error)[-300:].strip()}"
        raise AptError(Finding("apt.hold", "error", seen, "Mend what apt-mark complains about"))


def changes_held(steps: Iterable[apt.Change], node: Packages, ours: Callable[[str], bool]) -> list[Finding]:
    """Someone holds a package for a reason; ``ours`` tells which holds are this collection's to change."""
    wrong = [step for step in steps if step.package in node.held and not ours(step.package)]
    if not wrong:
        return []
    names = " ".join(sorted({step.package for step in wrong}))
    seen = f"apt would change packages on hold: {'; '.join(step.line for step in wrong)}"
    return [Finding("apt.changes_held", "error", seen, f"Release them if that is right: apt-mark unhold {names}")]


def _options(recommends: bool) -> list[str]:
    """Without ``--ignore-hold`` apt moves a named package, and not what it depends on; ``changes_held`` judges."""
    chosen = "--install-recommends" if recommends else "--no-install-recommends"
    return [chosen, "--ignore-hold", "--allow-change-held-packages", "--allow-downgrades"]


def _locked(said: str) -> Finding:
    seen = f"Another process has used apt or dpkg for {PATIENCE:g} s: {said}"
    remedy = "Wait until it has ended (unattended-upgrades, apt-daily), and run again; remove no lock"
    return Finding("apt.locked", "error", seen, remedy, "https://wiki.debian.org/Teams/Dpkg/FAQ#db-lock")


def _refused(what: str, packages: Iterable[str], said: str) -> Finding:
    if held := _LOCKED.search(said):
        return _locked(held[0])
    words = [line for line in said.splitlines() if line.startswith(("E:", " ")) or "Depends:" in line]
    seen = f"apt {what} {' '.join(packages)}: {' '.join(' '.join(words or said.splitlines()).split())[:500]}"
    remedy = "Look with apt-cache policy at what the sources offer; after an interrupted run, dpkg --configure -a"
    return Finding("apt.refused", "error", seen, remedy)


def interrupted(node: Packages, ours: Callable[[str], bool]) -> list[Finding]:
    """A run that was killed while dpkg worked. ``ours`` tells which packages matter."""
    names = sorted(filter(ours, node.broken))
    if not names:
        return []
    seen = f"dpkg was interrupted, and has not finished installing {', '.join(names)}"
    remedy = "Run dpkg --configure -a, then apt-get --fix-broken install if it asks for that, and run this again"
    return [Finding("apt.interrupted", "error", seen, remedy, "dpkg(1)")]


RULES: tuple[Callable[..., list[Finding]], ...] = (changes_held, interrupted)
