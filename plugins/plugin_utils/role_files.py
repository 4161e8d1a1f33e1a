# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The data that roles carry, read on the controller: locks and patch definitions."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.inference.sglang.plugins.module_utils import patches, releases, settings
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, as_text

_ROLES = Path(__file__).resolve().parents[2] / "roles"


def lock(release: str, python: str) -> str:
    """Text of a release's lock for a Python minor version; ValueError says which ones there are."""
    if wrong := releases.check(release, python):
        raise ValueError(as_text(wrong))
    return (_ROLES / "sglang" / "files" / "locks" / f"{release}-py{python}.txt").read_text(encoding="utf-8")


def toolkit_lock(version: str) -> str:
    """Text of a CUDA toolkit's lock; ValueError says which versions there are."""
    if version not in releases.TOOLKITS:
        raise ValueError(
            f"CUDA {version} has no lock. Set cuda_toolkit_version to one of: {', '.join(releases.TOOLKITS)}"
        )
    return (_ROLES / "cuda_toolkit" / "files" / "locks" / f"{version}.txt").read_text(encoding="utf-8")


def preset(name: str, folders: Iterable[str | None] = ()) -> tuple[dict[str, Any], list[Finding]]:
    """Settings, without their prefix, of a shipped preset by name or of a YAML file by path; or what is wrong."""
    content, findings = _named_file(name, "presets", (".yml", ".yaml"), folders)
    if not findings and not isinstance(content, Mapping):
        seen = f"Preset {name} is of type {settings.type_of(content)}"
        findings = [Finding("preset.type", "error", seen, "Write it as a mapping of settings, without their prefix")]
    return ({} if findings else dict(content)), findings


def shape(name: str, folders: Iterable[str | None] = ()) -> tuple[dict[str, Any], list[Finding]]:
    """A model's configuration: a shipped shape by name, or a ``config.json`` by path; or what is wrong."""
    content, findings = _named_file(name, "shapes", (".json",), folders)
    if not findings and not isinstance(content, Mapping):
        seen = f"{name} is of type {settings.type_of(content)}"
        findings = [Finding("shape.type", "error", seen, "Name a model's config.json")]
    return ({} if findings else dict(content)), findings


@functools.cache
def options(role: str) -> Mapping[str, Mapping[str, Any]]:
    """The options of a role's entry point ``main``, by variable."""
    specs = yaml.safe_load((_ROLES / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))
    found: Mapping[str, Mapping[str, Any]] = specs["argument_specs"]["main"]["options"]
    return found


def shipped(kind: str) -> list[str]:
    """Names of the shipped files of a kind: ``presets`` or ``shapes``."""
    return sorted(path.stem for path in (_ROLES / "sglang_server" / "files" / kind).iterdir())


def _named_file(
    name: str, kind: str, suffixes: tuple[str, ...], folders: Iterable[str | None]
) -> tuple[Any, list[Finding]]:
    """The content of a file that is given by name or by path. JSON is YAML."""
    one = kind.removesuffix("s")
    if name in shipped(kind):
        path = _ROLES / "sglang_server" / "files" / kind / f"{name}{suffixes[0]}"
    elif not name.endswith(suffixes):
        remedy = f"Use one of: {', '.join(shipped(kind))}; or the path of a file that ends in {suffixes[0]}"
        return None, [Finding(f"{one}.unknown", "error", f"There is no {one} {name!r}", remedy)]
    else:
        places = list(dict.fromkeys(str(folder) for folder in folders if folder))
        candidates = [Path(folder) / name for folder in places] or [Path(name)]
        found = next((candidate for candidate in candidates if _is_file(candidate)), None)
        if found is None:
            seen = f"There is no file {name}" + (f" in {' or '.join(places)}" if places else "")
            remedy = "Put it below the folder of the inventory, or give its full path"
            return None, [Finding(f"{one}.missing", "error", seen, remedy)]
        path = found
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")), []
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        seen = f"{path} cannot be read: {' '.join(str(error).split())[:300]}"
        return None, [Finding(f"{one}.unreadable", "error", seen, f"Write the file as {suffixes[0][1:].upper()}")]


def patch_definitions(
    chosen: Iterable[object], release: str | None, folders: Iterable[str | None] = ()
) -> tuple[list[dict[str, Any]], list[Finding]]:
    """The definitions of chosen patches, and what is wrong with them; whatever is given, nothing is raised.

    A patch is given as the id of a shipped one, as the path of a YAML file (a relative one is looked for in
    ``folders``, in that order), or as a definition. With a release, the whole set is judged for it.
    """
    shipped = _shipped()
    definitions, parsed, findings = [], [], []
    for given in chosen:
        places = list(dict.fromkeys(Path(folder) for folder in folders if folder))
        definition, source, wrong = _definition(given, shipped, places)
        findings += wrong
        if wrong:
            continue
        try:
            parsed.append(patches.from_mapping(definition))
            definitions.append(dict(definition))
        except patches.DefinitionError as error:
            findings += [replace(finding, source=source) for finding in error.findings]
    if release is not None and not findings:
        findings = patches.check_set(parsed, release, [patches.from_mapping(known) for known in shipped.values()])
    return definitions, findings


@functools.cache
def _shipped() -> dict[str, dict[str, Any]]:
    folder = _ROLES / "sglang" / "files" / "patches"
    return {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.yml"))}


def _definition(given: object, shipped: Mapping[str, Any], folders: list[Path]) -> tuple[Any, str, list[Finding]]:
    """What a patch is given by: its definition, not judged yet, the file that it is from, and what is wrong."""
    if isinstance(given, Mapping):
        return given, "", []
    if not isinstance(given, str):
        seen = f"A patch is given as {settings.type_of(given)}: {repr(given)[:200]}"
        remedy = "Give its id, the path of a YAML file, or its definition as a mapping"
        return None, "", [Finding("patch.entry_invalid", "error", seen, remedy)]
    if given in shipped:
        return shipped[given], f"roles/sglang/files/patches/{given}.yml", []
    if not given.endswith((".yml", ".yaml")):
        remedy = f"Use one of: {', '.join(shipped)}; or the path of a YAML file; or write the definition itself"
        return None, "", [Finding("patch.unknown", "error", f"There is no patch {given!r}", remedy)]
    candidates = [folder / given for folder in folders]  # a full path stands for itself
    path = next((path for path in candidates or [Path(given)] if _is_file(path)), None)
    if path is None:
        seen = f"There is no file {given}" + (f" in {' or '.join(map(str, folders))}" if folders else "")
        remedy = "Put it below the folder of the inventory, or give its full path"
        return None, "", [Finding("patch.definition_missing", "error", seen, remedy)]
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")), str(path), []
    except RecursionError:
        seen = f"{path} is nested too deeply"
        return None, "", [Finding("patch.definition_unreadable", "error", seen, "Write the file as a definition is")]
    except (OSError, ValueError, yaml.YAMLError) as error:
        seen = f"{path} cannot be read: {' '.join(str(error).split())}"
        return None, "", [Finding("patch.definition_unreadable", "error", seen, "Write the file as YAML")]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False
