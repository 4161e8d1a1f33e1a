# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Patches as managed state: one file of one distribution, known by its hash before and after, with an exact way back.

A file is written only when it is byte for byte the known original (or, on the way back, the known result).
Anything else is a conflict and stays as it is. A release folder has one patch a file at most.
"""

from __future__ import annotations

import difflib
import glob
import hashlib
import os
import re
import stat
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, as_text, errors

Want = Literal["present", "absent"]
State = Literal["applied", "restored", "already", "not_needed", "conflict"]

_REQUIRED = ("id", "summary", "distribution", "file", "releases", "edits", "probe")
_OPTIONAL = ("upstream", "fixed_in", "notes")
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"(\d+(?:\.\d+)*)(?:rc(\d+))?(?:\.post(\d+))?")
_OUTPUT_LIMIT = 2000


class Hashes(NamedTuple):
    """SHA-256 of the file in one release, 64 lower-case hexadecimal digits: as published, and with the patch."""

    before: str
    after: str


class Edit(NamedTuple):
    """One replacement. ``old`` occurs exactly once in the text it is applied to, ``new`` exactly once in the result."""

    old: str
    new: str


@dataclass(frozen=True)
class Patch:
    """A change to one file of an installed distribution.

    ``distribution``  name on the package index, as in ``sglang``
    ``file``          path inside site-packages, as in ``sglang/srt/utils.py``
    ``releases``      version of the distribution to the file's hashes
    ``edits``         applied in this order, undone in the opposite one
    ``probe``         Python source that exits 0 only when the behaviour is right. The release's own interpreter runs
                      it, isolated (``-I``), with the path of the file as its one argument
    ``fixed_in``      first version that has the change upstream; empty when none has
    ``upstream``      links: issue, pull request
    ``notes``         what a reader of the definition should know, such as cases that remain
    """

    id: str
    summary: str
    distribution: str
    file: str
    releases: Mapping[str, Hashes]
    edits: tuple[Edit, ...]
    probe: str
    fixed_in: str = ""
    upstream: tuple[str, ...] = ()
    notes: str = ""


@dataclass(frozen=True)
class Outcome:
    """What ``plan`` decided. ``after`` is the wanted content, equal to ``before`` unless something is to be written."""

    state: State
    before: bytes | None
    after: bytes | None
    findings: tuple[Finding, ...] = ()

    @property
    def changed(self) -> bool:
        return self.state in ("applied", "restored")

    @property
    def sha256(self) -> str:
        """SHA-256 of the wanted content; empty when there is no file."""
        return "" if self.after is None else _sha256(self.after)

    @property
    def diff(self) -> dict[str, str]:
        """Text before and after, for Ansible's diff mode."""
        return {"before": _text(self.before or b""), "after": _text(self.after or b"")}


@dataclass(frozen=True)
class ProbeResult:
    """Exit status of a probe (124: it ran past its limit, 127: it could not be started) and the end of its output."""

    rc: int
    output: str


@dataclass(frozen=True)
class Report:
    """What ``converge`` did. ``probe`` is None when no probe was run."""

    outcome: Outcome
    path: Path
    findings: tuple[Finding, ...]
    changed: bool
    probe: ProbeResult | None = None

    @property
    def name(self) -> str:
        """The outcome in one word, for the release's manifest."""
        return self.outcome.state if self.probe is None or self.probe.rc == 0 else "probe_failed"

    @property
    def sha256(self) -> str:
        """SHA-256 of the file when all is done; empty when there is no file."""
        if self.name == "probe_failed" and self.outcome.before is not None:
            return _sha256(self.outcome.before)
        return self.outcome.sha256


class DefinitionError(ValueError):
    """A patch definition that cannot be used; ``findings`` names every fault in it."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__(as_text(self.findings))


def from_mapping(mapping: Mapping[str, object]) -> Patch:
    """The patch that a YAML or JSON mapping describes (``roles/sglang/files/patches/*.yml`` are examples).

    Raises ``DefinitionError`` with one finding a fault.
    """
    reader = _Reader(mapping)
    patch = Patch(
        id=reader.text("id"),
        summary=reader.text("summary"),
        distribution=reader.text("distribution"),
        file=reader.text("file"),
        releases=reader.releases(),
        edits=reader.edits(),
        probe=reader.text("probe"),
        fixed_in=reader.text("fixed_in"),
        upstream=reader.links("upstream"),
        notes=reader.text("notes"),
    )
    reader.check(patch)
    if reader.findings:
        raise DefinitionError(reader.findings)
    return patch


def plan(patch: Patch, content: bytes | None, version: str, want: Want) -> Outcome:
    """Decide what ``content`` (the file's bytes, None when it does not exist) of release ``version`` has to become.

    ``present``: ``applied``, ``already``, ``not_needed`` (upstream has the change) or ``conflict``.
    ``absent``: ``restored``, ``already`` or ``conflict``.
    A conflict carries an error finding, and nothing may be written.
    """
    name = f"{patch.distribution} {version}"
    if patch.fixed_in and _at_least(version, patch.fixed_in):
        if want == "absent":
            return Outcome("already", content, content)
        seen = f"{name} has the change of patch {patch.id} upstream, since {patch.fixed_in}"
        source = patch.upstream[0] if patch.upstream else ""
        finding = Finding("patch.not_needed", "info", seen, "Nothing needs to be done", source)
        return Outcome("not_needed", content, content, (finding,))

    def conflict(kind: str, seen: str, remedy: str) -> Outcome:
        return Outcome("conflict", content, content, (Finding(f"patch.{kind}", "error", seen, remedy),))

    hashes = patch.releases.get(version)
    if hashes is None:
        return conflict(
            "release_unknown",
            f"Patch {patch.id} has no hashes for {name}; it has them for {', '.join(patch.releases)}",
            "Leave the patch out for this release, or read the file and add the release to the definition",
        )
    if content is None:
        return conflict(
            "file_missing",
            f"Patch {patch.id}: {patch.file} of {name} does not exist",
            f"Check that {name} is installed in this site-packages folder",
        )
    start, target = hashes if want == "present" else (hashes.after, hashes.before)
    actual = _sha256(content)
    if actual == target:
        return Outcome("already", content, content)
    if actual != start:
        return conflict(
            "file_changed",
            f"Patch {patch.id}: {_nearest(patch, content, actual)}{patch.file} of {name} has sha256 {actual}; "
            f"expected {hashes.before} (original) or {hashes.after} (patched)",
            "Install the release afresh, or write a patch definition for the file as it is",
        )
    edits = patch.edits if want == "present" else tuple(Edit(edit.new, edit.old) for edit in reversed(patch.edits))
    result = content
    for edit in edits:
        count = result.count(edit.old.encode())
        if count != 1:
            return conflict(
                "edit_not_unique",
                f"Patch {patch.id}: the text {edit.old!r} occurs {count} times in {patch.file} of {name}",
                "Choose a text that occurs exactly once, before the edit and after it",
            )
        result = result.replace(edit.old.encode(), edit.new.encode())
    if _sha256(result) != target:
        return conflict(
            "result_unexpected",
            f"Patch {patch.id}: the edits turn {patch.file} of {name} into sha256 {_sha256(result)}; expected {target}",
            "Correct the edits or the hashes of the definition",
        )
    return Outcome("applied" if want == "present" else "restored", content, result)


def digest(patches: Iterable[Patch], version: str) -> str:
    """Name of a patch set in a release's folder: 8 hexadecimal digits over ids and results, in any order.

    ``none`` when no patch of the set changes this release.
    """
    lines = sorted(f"{patch.id} {patch.releases[version].after}\n" for patch in patches if version in patch.releases)
    return _sha256("".join(lines).encode())[:8] if lines else "none"


def replace_file(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path`` by rename; mode and owner stay, compiled forms of the module go.

    Never in place: installed files are hard links into uv's cache, and other releases share the inode.
    """
    status = path.stat()
    # Before the rename, so that a run killed in between leaves none that the next run would not look for.
    for compiled in (path.parent / "__pycache__").glob(f"{glob.escape(path.stem)}.*.pyc"):
        compiled.unlink(missing_ok=True)
    # A fixed name: what a killed run left behind is replaced by the next one.
    temporary = path.with_name(f".{path.name}.patch")
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("xb") as stream:
            os.fchown(stream.fileno(), status.st_uid, status.st_gid)
            os.fchmod(stream.fileno(), stat.S_IMODE(status.st_mode))
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def run_probe(patch: Patch, python: Path, path: Path, limit: float = 300.0) -> ProbeResult:
    """Run the patch's probe on the file at ``path`` with the interpreter ``python``, for ``limit`` seconds at most."""
    command = [str(python), "-I", "-B", "-", str(path)]
    try:
        # pylint: disable-next=ansible-bad-function # the core knows no AnsibleModule, and run_command has no time limit
        process = subprocess.run(
            command,
            input=patch.probe.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return ProbeResult(124, f"{_text(error.output or b'')[-_OUTPUT_LIMIT:]}(no end within {limit:g} s)")
    except OSError as error:
        return ProbeResult(127, str(error))
    return ProbeResult(process.returncode, _text(process.stdout)[-_OUTPUT_LIMIT:].strip())


def converge(
    patch: Patch, site_packages: Path, version: str, want: Want, *, python: Path | None = None, check: bool = False
) -> Report:
    """Bring the file under ``site_packages`` to the wanted state; with ``check``, only say what would be done.

    With ``python``, a patched file is probed, also one that a former run patched. A file that this call patched and
    that fails its probe gets its original bytes back. Raises ``OSError`` when the file cannot be read or replaced.
    """
    path = site_packages / patch.file
    outcome = plan(patch, path.read_bytes() if path.exists() else None, version, want)
    if check or errors(outcome.findings):
        return Report(outcome, path, outcome.findings, outcome.changed)
    if outcome.changed and outcome.after is not None:
        replace_file(path, outcome.after)
    if python is None or want == "absent" or outcome.state == "not_needed":
        return Report(outcome, path, outcome.findings, outcome.changed)
    probe = run_probe(patch, python, path)
    if probe.rc == 0:
        return Report(outcome, path, outcome.findings, outcome.changed, probe)
    if outcome.changed and outcome.before is not None:
        replace_file(path, outcome.before)
        left = "the original file is back"
    else:
        left = "the file is as an earlier run left it"
    finding = Finding(
        "patch.probe_failed",
        "error",
        f"Patch {patch.id}: the probe exits {probe.rc} on {patch.file} of {patch.distribution} {version} "
        f"({probe.output or 'no output'}); {left}",
        "Correct the edits or the probe of the definition",
    )
    return Report(outcome, path, (*outcome.findings, finding), False, probe)


class _Reader:
    """Reads a definition key by key and collects its faults."""

    def __init__(self, mapping: Mapping[str, object]) -> None:
        self.findings: list[Finding] = []
        self._mapping = mapping
        name = mapping.get("id")
        self._label = f"Patch {name}" if isinstance(name, str) and name else "A patch without id"
        for key in _REQUIRED:
            if key not in mapping:
                self._fault("key_missing", f"the definition has no {key}", f"Add {key}")
        for key in mapping:
            if key not in _REQUIRED + _OPTIONAL:
                remedy = f"Use only the keys {', '.join(_REQUIRED + _OPTIONAL)}"
                self._fault("key_unknown", f"the definition has {key!r}", remedy)

    def _fault(self, kind: str, seen: str, remedy: str) -> None:
        self.findings.append(Finding(f"patch.{kind}", "error", f"{self._label}: {seen}", remedy))

    def _empty(self, key: str, value: object) -> bool:
        return key in _REQUIRED and key in self._mapping and not value

    def text(self, key: str) -> str:
        value = self._mapping.get(key, "")
        if not isinstance(value, str) or self._empty(key, value.strip()):
            self._fault("value_invalid", f"{key} is {value!r}", f"Write {key} as text that is not empty")
            return ""
        return value

    def links(self, key: str) -> tuple[str, ...]:
        value = self._mapping.get(key, [])
        if not isinstance(value, list) or not all(isinstance(link, str) for link in value):
            self._fault("value_invalid", f"{key} is {value!r}", f"Write {key} as a list of links")
            return ()
        return tuple(value)

    def releases(self) -> dict[str, Hashes]:
        value = self._mapping.get("releases", {})
        if not isinstance(value, Mapping) or self._empty("releases", value):
            remedy = "Map each release version to its hashes before and after"
            self._fault("value_invalid", f"releases is {value!r}", remedy)
            return {}
        releases: dict[str, Hashes] = {}
        for version, hashes in value.items():
            if not isinstance(version, str) or _version_key(version) is None:
                self._fault("value_invalid", f"releases has the key {version!r}", "Write versions as quoted text")
            elif not isinstance(hashes, Mapping) or set(hashes) != set(Hashes._fields):
                remedy = "Give it exactly the keys before and after"
                self._fault("value_invalid", f"releases[{version}] is {hashes!r}", remedy)
            else:
                for key, value in hashes.items():
                    if not isinstance(value, str) or not _SHA256.fullmatch(value):
                        remedy = "Write the SHA-256 of the file as 64 lower-case hexadecimal digits"
                        self._fault("hash_malformed", f"releases[{version}].{key} is {value!r}", remedy)
                if hashes["before"] == hashes["after"]:
                    seen = f"releases[{version}] has the same hash before and after"
                    self._fault("hash_malformed", seen, "Compute both hashes again")
                releases[version] = Hashes(hashes["before"], hashes["after"])
        return releases

    def edits(self) -> tuple[Edit, ...]:
        value = self._mapping.get("edits", [])
        if not isinstance(value, list) or self._empty("edits", value):
            self._fault("value_invalid", f"edits is {value!r}", "Write edits as a list of old and new texts")
            return ()
        edits: list[Edit] = []
        for number, edit in enumerate(value, 1):
            if not isinstance(edit, Mapping) or set(edit) != set(Edit._fields):
                self._fault("value_invalid", f"edit {number} is {edit!r}", "Give it exactly the keys old and new")
            elif not all(isinstance(text, str) and text for text in edit.values()) or edit["old"] == edit["new"]:
                remedy = "Give it two texts that differ and are not empty"
                self._fault("value_invalid", f"edit {number} replaces {edit['old']!r} by {edit['new']!r}", remedy)
            else:
                edits.append(Edit(edit["old"], edit["new"]))
        return tuple(edits)

    def check(self, patch: Patch) -> None:
        """What is judged on the values themselves, where they could be read."""
        if patch.id and not _ID.fullmatch(patch.id):
            remedy = "Write id in lower-case letters, digits and single hyphens"
            self._fault("value_invalid", f"id is {patch.id!r}", remedy)
        file = PurePosixPath(patch.file)
        if file.is_absolute() or ".." in file.parts:
            self._fault("value_invalid", f"file is {patch.file!r}", "Give file as a path inside site-packages")
        if patch.fixed_in and _version_key(patch.fixed_in) is None:
            remedy = "Write fixed_in as a release version, such as 0.5.18"
            self._fault("value_invalid", f"fixed_in is {patch.fixed_in!r}", remedy)
        for version in patch.releases:
            if patch.fixed_in and _at_least(version, patch.fixed_in):
                seen = f"releases has {version}, and fixed_in is {patch.fixed_in}"
                self._fault("value_invalid", seen, "Remove the release or correct fixed_in")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _version_key(version: str) -> tuple[tuple[int, ...], float, int] | None:
    """Order of release versions: ``0.5.18rc1`` < ``0.5.18`` < ``0.5.18.post1``; None for any other form."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return None
    numbers, candidate, post = match.groups()
    parts = tuple(int(part) for part in re.sub(r"(\.0+)+$", "", numbers).split("."))
    return parts, float(candidate or "inf"), int(post or -1)


def _at_least(version: str, bound: str) -> bool:
    key, bound_key = _version_key(version), _version_key(bound)
    return key is not None and bound_key is not None and key >= bound_key


def _nearest(patch: Patch, content: bytes, actual: str) -> str:
    """How a file of unknown content relates to the known ones, as the beginning of a sentence; empty if unclear.

    Only hashes are known of the whole file, so the comparison is with the texts of the edits.
    """
    for version, hashes in patch.releases.items():
        if actual in hashes:
            return f"the file is the {'original' if actual == hashes.before else 'result'} of {version}: "
    if all(content.count(edit.new.encode()) == 1 for edit in patch.edits):
        return "the edits are in the file, which differs elsewhere: "
    if all(content.count(edit.old.encode()) == 1 for edit in patch.edits):
        return "the texts to replace are in the file, which differs elsewhere: "
    lines = [line.strip() for line in _text(content).splitlines()]
    best, report = 0.75, ""  # below that, another assignment of the same name looks as near
    for edit in patch.edits:
        for form, known_text in (("original", edit.old), ("patched", edit.new)):
            known = [line.strip() for line in known_text.splitlines()]
            matcher = difflib.SequenceMatcher(None, "", "\n".join(known), autojunk=False)
            for start in range(len(lines) - len(known) + 1):
                found = lines[start : start + len(known)]
                matcher.set_seq1("\n".join(found))
                if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and matcher.ratio() > best:
                    best = matcher.ratio()
                    diff = difflib.unified_diff(known, found, form, f"found at line {start + 1}", lineterm="")
                    report = "\n".join(diff)
    return f"nearest text:\n{report}\n" if report else ""
