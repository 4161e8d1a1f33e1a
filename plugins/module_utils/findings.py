# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Findings: something wrong or worth knowing, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """One judgement about settings, a node, a model or a release.

    ``id``        stable dotted name, ``room.fault`` (``release.unknown``)
    ``severity``  ``error`` stops the run before anything is changed; ``warning`` and ``info`` do not
    ``seen``      what was read, with its value and unit
    ``remedy``    what to do, in the imperative
    ``source``    where the judgement comes from: a link, or a file of this repository; may be empty
    """

    id: str
    severity: Severity
    seen: str
    remedy: str
    source: str = ""

    def __str__(self) -> str:
        source = f" [{self.source}]" if self.source else ""
        return f"{self.severity}: {self.id}: {self.seen}. {self.remedy}.{source}"


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that must stop the run."""
    return [finding for finding in findings if finding.severity == "error"]


def as_dicts(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """The findings in the shape that modules return and ``--json`` prints."""
    return [asdict(finding) for finding in findings]


def as_text(findings: Iterable[Finding]) -> str:
    """One line a finding, errors first."""
    order = {"error": 0, "warning": 1, "info": 2}
    return "\n".join(str(finding) for finding in sorted(findings, key=lambda finding: order[finding.severity]))
