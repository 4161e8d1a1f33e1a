# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Patches as managed state: one file of one distribution, known by its hash before and after, with an exact way back.

A file is written only when it is byte for byte the known original (or, on the way back, the known result).
Anything else is a conflict and stays as it is. A release folder has one patch a file at most.

A release is one of SGLang's, also where the file belongs to another distribution: a release's lock pins them all.
"""

from __future__ import annotations

import difflib
import glob
import hashlib
import os
import re
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, as_text, errors

Want = Literal["present", "absent"]
State = Literal["applied", "restored", "already", "not_needed", "conflict"]

_REQUIRED = ("id", "summary", "distribution", "file", "releases", "edits", "probe")
_OPTIONAL = ("upstream", "fixed_in", "requires", "notes")
# What a variant may say for its releases; what it leaves out is the definition's.
_VARIANT = ("file", "releases", "edits", "probe")
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"(\d+(?:\.\d+)*)(?:rc(\d+))?(?:\.post(\d+))?")
_OUTPUT_LIMIT = 2000
_DIFF_LINES = 60
_LINE_LENGTH = 200


class Hashes(NamedTuple):
    """SHA-256 of the file in one release, 64 lower-case hexadecimal digits: as published, and with the patch."""

    before: str
    after: str


class Edit(NamedTuple):
    """One replacement. ``old`` occurs exactly once in the text it is applied to, ``new`` exactly once in the result."""

    old: str
    new: str


@dataclass(frozen=True)
class Variant:
    """The change in those releases in which it is the same text.

    ``file``      path inside site-packages, as in ``sglang/srt/utils.py``
    ``releases``  SGLang release to the file's hashes
    ``edits``     applied in this order, undone in the opposite one
    ``probe``     Python source that exits 0 only when the behaviour is right. The release's own interpreter runs it,
                  isolated (``-I``), with two arguments: the path of the file and the release
    """

    file: str
    releases: Mapping[str, Hashes]
    edits: tuple[Edit, ...]
    probe: str


@dataclass(frozen=True)
class Patch:
    """A change to an installed distribution, in each release to one file.

    ``distribution``  name on the package index, as in ``sglang``
    ``variants``      one at least; no release is in two of them
    ``fixed_in``      first release that has the change upstream; empty when none has
    ``requires``      ids of patches without which this one is not enough, in the releases that those change
    ``upstream``      links: issue, pull request
    ``notes``         what a reader of the definition should know, such as cases that remain
    """

    id: str
    summary: str
    distribution: str
    variants: tuple[Variant, ...]
    fixed_in: str = ""
    requires: tuple[str, ...] = ()
    upstream: tuple[str, ...] = ()
    notes: str = ""

    @property
    def releases(self) -> dict[str, Hashes]:
        """Every release that the patch changes, to the hashes of the file that it changes there."""
        return {version: hashes for variant in self.variants for version, hashes in variant.releases.items()}

    def variant(self, version: str) -> Variant:
        """The variant for a release; the last one where the release is in none."""
        return next((variant for variant in self.variants if version in variant.releases), self.variants[-1])

    def fixed(self, version: str) -> bool:
        """Whether the release has the change upstream."""
        return bool(self.fixed_in) and _at_least(version, self.fixed_in)


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


_PROBE_REMEDIES = {
    124: "Run it again when the machine is less busy, or make the probe quicker",
    127: "Name the interpreter of the release, which runs the probe",
}


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


def from_mapping(mapping: object) -> Patch:
    """The patch that a YAML or JSON mapping describes (``roles/sglang/files/patches/*.yml`` are examples).

    Raises ``DefinitionError`` with one finding a fault, whatever is given.
    """
    if not isinstance(mapping, Mapping):
        raise DefinitionError([_unusable(mapping)])
    reader = _Reader(mapping)
    patch = Patch(
        id=reader.text("id"),
        summary=reader.text("summary"),
        distribution=reader.text("distribution"),
        variants=reader.variants(),
        fixed_in=reader.text("fixed_in"),
        requires=reader.texts("requires", "ids of patches"),
        upstream=reader.texts("upstream", "links"),
        notes=reader.text("notes"),
    )
    reader.check(patch)
    if reader.findings:
        raise DefinitionError(reader.findings)
    return patch


def check_set(chosen: Sequence[Patch], version: str, shipped: Iterable[Patch] = ()) -> list[Finding]:
    """Judge whether the patches of one release folder go together; ``shipped`` are the ones that could be added."""
    findings = []
    for patch in {patch.id: patch for patch in chosen}.values():
        if (count := [other.id for other in chosen].count(patch.id)) > 1:
            seen = f"Patch {patch.id} is given {count} times"
            findings.append(Finding("patch.duplicate", "error", seen, "Give it once, and each patch an id of its own"))
        if version not in patch.releases and not patch.fixed(version):
            findings.append(_release_unknown(patch, version))
    files: dict[str, list[str]] = {}
    for patch in {patch.id: patch for patch in chosen if version in patch.releases}.values():
        files.setdefault(str(PurePosixPath(patch.variant(version).file)), []).append(patch.id)
        findings += _missing(patch, version, chosen, shipped)
    for file, ids in files.items():
        if len(ids) > 1:
            seen = f"The patches {', '.join(ids)} change the same file in release {version}: {file}"
            findings.append(
                Finding("patch.same_file", "error", seen, "Leave all but one out, or write one patch that does both")
            )
    return findings


def plan(patch: Patch, content: bytes | None, version: str, want: Want, original: bytes | None = None) -> Outcome:
    """Decide what ``content`` (the file's bytes, None when it does not exist) of release ``version`` has to become.

    ``present``: ``applied``, ``already``, ``not_needed`` (upstream has the change) or ``conflict``.
    ``absent``: ``restored``, ``already`` or ``conflict``.
    A conflict carries an error finding, and nothing may be written. The finding on a file of unknown content shows how
    it differs from ``original``, where that is the known original, and from the nearest text of an edit otherwise.
    """
    if patch.fixed(version):
        if want == "absent":
            return Outcome("already", content, content)
        seen = f"Release {version} has the change of patch {patch.id} upstream, since {patch.fixed_in}"
        source = patch.upstream[0] if patch.upstream else ""
        finding = Finding("patch.not_needed", "info", seen, "Nothing needs to be done", source)
        return Outcome("not_needed", content, content, (finding,))

    def conflict(kind: str, seen: str, remedy: str) -> Outcome:
        return Outcome("conflict", content, content, (Finding(f"patch.{kind}", "error", seen, remedy),))

    variant = patch.variant(version)
    hashes = variant.releases.get(version)
    if hashes is None:
        return Outcome("conflict", content, content, (_release_unknown(patch, version),))
    name = f"{variant.file} ({patch.distribution}, release {version})"
    if content is None:
        return conflict(
            "file_missing",
            f"Patch {patch.id}: {name} does not exist",
            f"Check that release {version} and its {patch.distribution} are installed in this site-packages folder",
        )
    start, target = hashes if want == "present" else (hashes.after, hashes.before)
    actual = _sha256(content)
    if actual == target:
        return Outcome("already", content, content)
    if actual != start:
        return conflict(
            "file_changed",
            f"Patch {patch.id}: {_difference(patch, variant, hashes, content, original)}{name} has sha256 {actual}; "
            f"expected {hashes.before} (original) or {hashes.after} (patched)",
            "Install the release afresh, or write a patch definition for the file as it is",
        )
    edits = variant.edits if want == "present" else _undone(variant.edits)
    result = content
    for edit in edits:
        count = result.count(edit.old.encode())
        if count != 1:
            return conflict(
                "edit_not_unique",
                f"Patch {patch.id}: the text {_shown(edit.old)} occurs {count} times in {name}",
                "Choose a text that occurs exactly once, before the edit and after it",
            )
        result = result.replace(edit.old.encode(), edit.new.encode())
    if _sha256(result) != target:
        return conflict(
            "result_unexpected",
            f"Patch {patch.id}: the edits turn {name} into sha256 {_sha256(result)}; expected {target}",
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


def find_original(cache: Path, file: str, sha256: str) -> bytes | None:
    """The known original of ``file`` from the unpacked wheels of uv's cache; None where it is not there."""
    for path in cache.glob(f"archive-v*/*/{glob.escape(file)}"):
        content = path.read_bytes()
        if _sha256(content) == sha256:
            return content
    return None


def run_probe(probe: str, python: Path, path: Path, version: str, limit: float = 300.0) -> ProbeResult:
    """Run a probe on the file at ``path`` with the interpreter ``python``, for ``limit`` seconds at most."""
    command = [str(python), "-I", "-B", "-", str(path), version]
    try:
        # pylint: disable-next=ansible-bad-function # the core knows no AnsibleModule, and run_command has no time limit
        process = subprocess.run(
            command,
            input=probe.encode(),
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
    patch: Patch,
    site_packages: Path,
    version: str,
    want: Want,
    *,
    python: Path | None = None,
    cache: Path | None = None,
    check: bool = False,
) -> Report:
    """Bring the file under ``site_packages`` to the wanted state; with ``check``, only say what would be done.

    With ``python``, a patched file is probed, also one that a former run patched. A file that this call patched and
    that fails its probe gets its original bytes back. With ``cache``, uv's, a conflict is shown as the difference from
    the original. Raises ``OSError`` when the file cannot be read or replaced.
    """
    variant = patch.variant(version)
    path = site_packages / variant.file
    content = path.read_bytes() if path.exists() else None
    outcome = plan(patch, content, version, want)
    if outcome.state == "conflict" and cache is not None and version in variant.releases:
        original = find_original(cache, variant.file, variant.releases[version].before)
        outcome = plan(patch, content, version, want, original)
    if check or errors(outcome.findings):
        return Report(outcome, path, outcome.findings, outcome.changed)
    if outcome.changed and outcome.after is not None:
        replace_file(path, outcome.after)
    if python is None or want == "absent" or outcome.state == "not_needed":
        return Report(outcome, path, outcome.findings, outcome.changed)
    probe = run_probe(variant.probe, python, path, version)
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
        f"Patch {patch.id}: the probe exits {probe.rc} on {variant.file} ({patch.distribution}, release {version}): "
        f"{probe.output or 'no output'}; {left}",
        _PROBE_REMEDIES.get(probe.rc, "Correct the edits or the probe of the definition"),
    )
    return Report(outcome, path, (*outcome.findings, finding), False, probe)


class _Reader:
    """Reads a definition key by key and collects its faults."""

    def __init__(self, mapping: Mapping[str, object]) -> None:
        self.findings: list[Finding] = []
        self._mapping = mapping
        name = mapping.get("id")
        self._label = f"Patch {name}" if isinstance(name, str) and name else "A patch without id"
        given = set(mapping)
        if "variants" in mapping:
            given |= set(_VARIANT)  # judged in each variant
        for key in _REQUIRED:
            if key not in given:
                self._fault("key_missing", f"the definition has no {key}", f"Add {key}")
        self._strangers("the definition", mapping, (*_REQUIRED, *_OPTIONAL, "variants"))

    def _fault(self, kind: str, seen: str, remedy: str) -> None:
        self.findings.append(Finding(f"patch.{kind}", "error", f"{self._label}: {seen}", remedy))

    def _strangers(self, where: str, mapping: Mapping[str, object], known: tuple[str, ...]) -> None:
        for key in mapping:
            if key not in known:
                self._fault("key_unknown", f"{where} has {_shown(key)}", f"Use only the keys {', '.join(known)}")

    def text(self, key: str) -> str:
        return self._text(key, self._mapping.get(key, ""), needed=key in _REQUIRED and key in self._mapping)

    def _text(self, name: str, value: object, *, needed: bool) -> str:
        if not isinstance(value, str) or (needed and not value.strip()):
            self._fault("value_invalid", f"{name} is {_shown(value)}", f"Write {name} as text that is not empty")
            return ""
        return value

    def texts(self, key: str, what: str) -> tuple[str, ...]:
        value = self._mapping.get(key, [])
        if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
            self._fault("value_invalid", f"{key} is {_shown(value)}", f"Write {key} as a list of {what}")
            return ()
        return tuple(value)

    def variants(self) -> tuple[Variant, ...]:
        common = {key: self._mapping[key] for key in _VARIANT if key in self._mapping}
        if "variants" not in self._mapping:
            return (self._variant(common, ""),)
        value = self._mapping["variants"]
        if not isinstance(value, list) or not value:
            remedy = f"Write variants as a list of mappings with the keys {', '.join(_VARIANT)}"
            self._fault("value_invalid", f"variants is {_shown(value)}", remedy)
            return ()
        if "releases" in common:
            self._fault("value_invalid", "releases stands beside variants", "Give every variant its own releases")
        variants = []
        for number, own in enumerate(value, 1):
            where = f"variant {number}"
            if not isinstance(own, Mapping):
                remedy = f"Write it as a mapping with the keys {', '.join(_VARIANT)}"
                self._fault("value_invalid", f"{where} is {_shown(own)}", remedy)
                continue
            self._strangers(where, own, _VARIANT)
            merged = {**{key: value for key, value in common.items() if key != "releases"}, **own}
            for key in _VARIANT:
                if key not in merged:
                    remedy = f"Add {key} to it" if key == "releases" else f"Add {key} to it or to the definition"
                    self._fault("key_missing", f"{where} has no {key}", remedy)
            variants.append(self._variant(merged, f"{where}: "))
        return tuple(variants)

    def _variant(self, mapping: Mapping[str, object], where: str) -> Variant:
        file = self._text(f"{where}file", mapping.get("file", ""), needed="file" in mapping)
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts:
            self._fault("value_invalid", f"{where}file is {_shown(file)}", "Give file as a path inside site-packages")
        return Variant(
            file=file,
            releases=self._releases(f"{where}releases", mapping["releases"]) if "releases" in mapping else {},
            edits=self._edits(where, mapping["edits"]) if "edits" in mapping else (),
            probe=self._text(f"{where}probe", mapping.get("probe", ""), needed="probe" in mapping),
        )

    def _releases(self, name: str, value: object) -> dict[str, Hashes]:
        if not isinstance(value, Mapping) or not value:
            remedy = "Map each release to its hashes before and after"
            self._fault("value_invalid", f"{name} is {_shown(value)}", remedy)
            return {}
        releases: dict[str, Hashes] = {}
        for version, hashes in value.items():
            if not isinstance(version, str) or _version_key(version) is None:
                self._fault("value_invalid", f"{name} has the key {_shown(version)}", "Write releases as quoted text")
            elif not isinstance(hashes, Mapping) or set(hashes) != set(Hashes._fields):
                remedy = "Give it exactly the keys before and after"
                self._fault("value_invalid", f"{name}[{version}] is {_shown(hashes)}", remedy)
            else:
                for key, digest in hashes.items():
                    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
                        remedy = "Write the SHA-256 of the file as 64 lower-case hexadecimal digits"
                        self._fault("hash_malformed", f"{name}[{version}].{key} is {_shown(digest)}", remedy)
                if hashes["before"] == hashes["after"]:
                    seen = f"{name}[{version}] has the same hash before and after"
                    self._fault("hash_malformed", seen, "Compute both hashes again")
                releases[version] = Hashes(hashes["before"], hashes["after"])
        return releases

    def _edits(self, where: str, value: object) -> tuple[Edit, ...]:
        if not isinstance(value, list) or not value:
            remedy = "Write edits as a list of old and new texts"
            self._fault("value_invalid", f"{where}edits is {_shown(value)}", remedy)
            return ()
        edits: list[Edit] = []
        for number, edit in enumerate(value, 1):
            name = f"{where}edit {number}"
            if not isinstance(edit, Mapping) or set(edit) != set(Edit._fields):
                self._fault("value_invalid", f"{name} is {_shown(edit)}", "Give it exactly the keys old and new")
            elif not all(isinstance(text, str) and text for text in edit.values()) or edit["old"] == edit["new"]:
                remedy = "Give it two texts that differ and are not empty"
                seen = f"{name} replaces {_shown(edit['old'])} by {_shown(edit['new'])}"
                self._fault("value_invalid", seen, remedy)
            else:
                edits.append(Edit(edit["old"], edit["new"]))
        return tuple(edits)

    def check(self, patch: Patch) -> None:
        """What is judged on the values themselves, where they could be read."""
        for name, value in (("id", patch.id), *(("requires", required) for required in patch.requires)):
            if value and not _ID.fullmatch(value):
                remedy = f"Write {name} in lower-case letters, digits and single hyphens"
                self._fault("value_invalid", f"{name} is {_shown(value)}", remedy)
        if patch.fixed_in and _version_key(patch.fixed_in) is None:
            remedy = "Write fixed_in as a release, such as 0.5.18"
            self._fault("value_invalid", f"fixed_in is {_shown(patch.fixed_in)}", remedy)
        versions = [version for variant in patch.variants for version in variant.releases]
        for version in dict.fromkeys(versions):
            if patch.fixed(version):
                seen = f"releases has {version}, and fixed_in is {patch.fixed_in}"
                self._fault("value_invalid", seen, "Remove the release or correct fixed_in")
            if versions.count(version) > 1:
                self._fault("value_invalid", f"{version} is in two variants", "Leave it in one of them")


def _unusable(given: object) -> Finding:
    remedy = "Write it as a mapping with the keys " + ", ".join(_REQUIRED)
    return Finding("patch.value_invalid", "error", f"A patch definition is {_shown(given)}", remedy)


def _release_unknown(patch: Patch, version: str) -> Finding:
    return Finding(
        "patch.release_unknown",
        "error",
        f"Patch {patch.id} has no hashes for release {version}; it has them for {', '.join(patch.releases)}",
        "Leave the patch out for this release, or read the file and add the release to the definition",
    )


def _missing(patch: Patch, version: str, chosen: Sequence[Patch], shipped: Iterable[Patch]) -> list[Finding]:
    """Patches that this one requires in a release and that are not among the chosen ones."""
    given = {other.id for other in chosen}
    known = {other.id: other for other in shipped}
    findings = []
    for required in patch.requires:
        if required in given or (required in known and version not in known[required].releases):
            continue
        if required in known:
            seen = f"Patch {patch.id} is not enough in release {version} without patch {required}"
            findings.append(Finding("patch.requirement_missing", "error", seen, f"Add {required} to the patches"))
        else:
            seen = f"Patch {patch.id} requires {required}, and there is no such patch"
            remedy = "Add its definition to the patches, or correct requires"
            findings.append(Finding("patch.requirement_missing", "error", seen, remedy))
    return findings


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _shown(value: object) -> str:
    """A value for a finding, shortened."""
    text = repr(value)
    return text if len(text) <= _LINE_LENGTH else f"{text[:_LINE_LENGTH]} …"


def _undone(edits: Sequence[Edit]) -> tuple[Edit, ...]:
    return tuple(Edit(edit.new, edit.old) for edit in reversed(edits))


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


def _difference(patch: Patch, variant: Variant, hashes: Hashes, content: bytes, original: bytes | None) -> str:
    """How a file of unknown content relates to what is known of it, as the beginning of a sentence; may be empty."""
    actual = _sha256(content)
    for version, (before, after) in patch.releases.items():
        if actual in (before, after):
            return f"the file is the {'original' if actual == before else 'result'} of {version}: "
    if original is None or _sha256(original) != hashes.before:
        return _nearest(variant, content)
    patched = original
    for edit in variant.edits:
        patched = patched.replace(edit.old.encode(), edit.new.encode())
    known = [("original", original), ("patched", patched)]
    found = _text(content).split("\n")
    diffs = [
        list(difflib.unified_diff(_text(text).split("\n"), found, form, "found", n=2, lineterm=""))
        for form, text in known
    ]
    return f"difference from what is known:\n{_limited(min(diffs, key=len))}\n"


def _limited(lines: Sequence[str]) -> str:
    """The first lines, shortened; line ends of another system and other control characters are made visible."""
    visible = ("".join(c if c.isprintable() else repr(c)[1:-1] for c in line) for line in lines[:_DIFF_LINES])
    shown = [line if len(line) <= _LINE_LENGTH else f"{line[:_LINE_LENGTH]} …" for line in visible]
    if len(lines) > _DIFF_LINES:
        shown.append(f"… and {len(lines) - _DIFF_LINES} more lines")
    return "\n".join(shown)


def _nearest(variant: Variant, content: bytes) -> str:
    """As ``_difference``, where only hashes are known of the whole file: a comparison with the texts of the edits."""
    if all(content.count(edit.new.encode()) == 1 for edit in variant.edits):
        return "the edits are in the file, which differs elsewhere: "
    if all(content.count(edit.old.encode()) == 1 for edit in variant.edits):
        return "the texts to replace are in the file, which differs elsewhere: "
    lines = [line.strip() for line in _text(content).splitlines()]
    best, report = 0.75, ""  # below that, another assignment of the same name looks as near
    for edit in variant.edits:
        for form, known_text in (("original", edit.old), ("patched", edit.new)):
            known = [line.strip() for line in known_text.splitlines()]
            matcher = difflib.SequenceMatcher(None, "", "\n".join(known), autojunk=False)
            for start in range(len(lines) - len(known) + 1):
                found = lines[start : start + len(known)]
                matcher.set_seq1("\n".join(found))
                if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and matcher.ratio() > best:
                    best = matcher.ratio()
                    diff = difflib.unified_diff(known, found, form, f"found at line {start + 1}", lineterm="")
                    report = _limited(list(diff))
    return f"nearest text:\n{report}\n" if report else ""
