# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A model's files: whether a folder holds all of them, which are still to fetch, and the manifest that says so.

A folder is complete when every shard that its index names is there and as long as its own header says. What this
collection fetched is complete when its manifest, written last, names every file with the size and time that it has now.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import re
import struct
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils import wheels
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding

HERE = "plugins/module_utils/weights.py"
FORMAT = "huggingface/safetensors"

OWN = ".model_weights"
"""Folder in the model's, for what the role keeps there: manifest, files under way, state of a transfer."""

LEDGER = "verified.json"
"""File in it: what a transfer under way has found right so far."""

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"

PARTIAL = (".incomplete", ".part", ".partial", ".crdownload", ".aria2", ".filepart", ".wget")
"""Ends of names that downloaders give to what they have not finished: huggingface_hub, browsers, aria2, FTP clients."""

_RSYNC = re.compile(r"\..+\.(?:safetensors|json|model)\.[A-Za-z0-9]{6}")
"""How rsync names what it has not finished (rsync(1), ``--partial``)."""

OTHER_FORMATS = (".bin", ".gguf", ".pt", ".pth")
"""Weights that SGLang loads and that have no header to judge them by (``srt/model_loader/weight_utils.py``)."""

NO_WEIGHTS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
"""Of those formats, what trainers leave and SGLang leaves out (``filter_files_not_needed_for_inference``)."""

INDEXED_FORMATS = (
    *("auto", "safetensors", "fastsafetensors", "instanttensor", "layered", "flash_rl", "bitsandbytes"),
    "runai_streamer",
)
"""Values of ``--load-format`` that load what the index names; others have files of their own, or none
(``srt/model_loader/loader.py``)."""

TOKENIZERS = ("tokenizer.json", "*.tok.json", "tekken.json", "*tokenizer.model*", "*.model", "*.tiktoken", "*vocab*")
"""Files that a tokenizer of ``transformers`` or Mistral is made from; one of them tells that it is there."""

MTP = "mtp.safetensors"
"""Loaded though no index names it (``maybe_add_mtp_safetensors`` in ``srt/model_loader/weight_utils.py``)."""

LARGEST_HEADER = 100_000_000
"""Bytes; the safetensors format refuses longer headers."""

POINTER = b"version https://git-lfs"
"""How the file begins that git leaves in the place of a large one, where Git LFS is not installed."""

SPARE = 1.05
"""How many times the missing bytes must be free."""

INCLUDED = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt", "*.py", "LICENSE*")
EXCLUDED = ("*/*.safetensors", "consolidated*.safetensors", "original/*", "onnx/*", "metal/*", ".*")
"""What of a repository is fetched: SGLang loads safetensors of the top folder. Mistral's ``consolidated`` files and the
folders ``original`` and ``metal`` hold the same weights again."""

COMMIT = re.compile(r"[0-9a-f]{40}")
_KEYS = {"huggingface": ("repository", "revision", "include", "exclude"), "url": (), "folder": ("folder",)}
FETCHED = tuple(_KEYS)
"""Sources that role ``model_weights`` fetches from."""
_LINE = re.compile(r"\\?([0-9a-fA-F]{64}) [ *](.+)")
_NUMBERED = re.compile(r"(.*-)(\d{5})(-of-)(\d{5})(\.safetensors)")


class WeightsError(ValueError):
    """A model that cannot be had; ``findings`` say why."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__("; ".join(str(finding) for finding in findings))
        self.findings = findings


@dataclass(frozen=True)
class Stock:
    """What lies in a model's folder, as far as completeness is judged by it.

    ``path``       the folder
    ``index``      what is wrong with the index; empty where nothing is, or where there is none
    ``indexed``    whether there is an index
    ``named``      shards that the index names; without one, those that the numbers in the names of others imply
    ``shards``     safetensors files of the top folder
    ``broken``     file -> what is wrong with its header or its length
    ``partial``    what a downloader has left unfinished
    ``indexes``    other files that look like an index of safetensors
    ``others``     weights in other formats
    ``tokenizer``  whether there is one
    ``bytes``      of all files
    ``config``     what is wrong with ``config.json``; empty where nothing is, or where there is none
    """

    path: str
    index: str = ""
    indexed: bool = False
    named: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)
    partial: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    tokenizer: bool = True
    bytes: int = 0
    config: str = ""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Stock:
        """What ``dataclasses.asdict`` gave, also after JSON. Raises TypeError for anything else."""
        made: dict[str, Any] = {name: tuple(it) if isinstance(it, list) else it for name, it in values.items()}
        return cls(**made)

    @property
    def missing(self) -> tuple[str, ...]:
        """Shards that ought to be there: none where there are only other weights, which SGLang then loads."""
        if not self.shards and any(name.endswith(".bin") for name in self.others):
            return ()
        return tuple(name for name in self.named if name not in self.shards)

    @property
    def strangers(self) -> tuple[str, ...]:
        """Shards that a readable index does not name, which SGLang does not load; or those that do not fit others."""
        if not self.named or (self.indexed and self.index):
            return ()
        return tuple(name for name in self.shards if name not in (*self.named, MTP))


def take(folder: Path, shown: str = "") -> Stock:
    """Look through a folder; of a weight file only its header is read. ``shown`` is how the folder is told.

    What may not be read is taken for right: whether the service may read it is judged elsewhere.
    """
    names, size = _walk(folder)
    top = [name for name in names if "/" not in name]
    shards = [name for name in top if name.endswith(".safetensors")]
    broken = {}
    for name in shards:
        with contextlib.suppress(PermissionError):
            if why := measure(folder / name):
                broken[name] = why
    indexed = INDEX in top
    why, named = _index(folder / INDEX) if indexed else ("", _implied(shards))
    return Stock(
        path=shown or str(folder),
        index=why,
        indexed=indexed,
        named=named,
        shards=tuple(shards),
        broken=broken,
        partial=tuple(name for name in names if _is_partial(name) and not name.startswith(f"{OWN}/")),
        indexes=tuple(name for name in top if name.endswith(".safetensors.index.json") and name != INDEX),
        others=_others(top),
        tokenizer=_has_tokenizer(top),
        bytes=size,
        config=_config(folder / CONFIG),
    )


def stored(folder: Path) -> int:
    """Bytes of all files of a folder; 0 where there is none."""
    return _walk(folder)[1]


def measure(path: Path) -> str:
    """What is wrong with a safetensors file: 8 bytes with the length of the header, the header, then the tensors up to
    the file's last byte. Empty where nothing is. Raises PermissionError.
    """
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            start = stream.read(8)
            if start == POINTER[:8] and (start + stream.read(32)).startswith(POINTER):
                return "is a pointer of Git LFS, not the weights"
            if len(start) < 8:
                return f"is truncated: {size} bytes are no safetensors file"
            length = struct.unpack("<Q", start)[0]
            if length > LARGEST_HEADER:
                return f"is no safetensors file: its header would have {length} bytes"
            if size < 8 + length:
                return f"is truncated: {size} bytes, and its header alone has {8 + length}"
            header = json.loads(stream.read(length))
            ends = [
                entry["data_offsets"][1]
                for name, entry in header.items()
                if name != "__metadata__" and entry["data_offsets"][0] <= entry["data_offsets"][1]
            ]
            expected = 8 + length + max(ends, default=0)
    except PermissionError:
        raise
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "has a damaged header"
    if size != expected:
        return f"{'is truncated' if size < expected else 'is too long'}: {size} bytes, and its header says {expected}"
    return ""


def judge(stock: Stock) -> list[Finding]:
    """Every rule's findings, in the order in which a reader would mend them."""
    return [finding for rule in RULES for finding in rule(stock)]


def config_readable(stock: Stock) -> list[Finding]:
    """``transformers`` chooses by ``model_type``, or by ``auto_map`` where code comes with the model, and SGLang by
    ``architectures``. Source: ``get_config`` in ``srt/utils/hf_transformers_utils.py``.
    """
    if not stock.config:
        return []
    seen = f"{stock.path}/{CONFIG} {stock.config}"
    return [Finding("weights.config", "error", seen, "Fetch this file again, unchanged", FORMAT)]


def index_readable(stock: Stock) -> list[Finding]:
    """Without a readable index nobody can tell what is missing. Source: the format of sharded checkpoints."""
    if not stock.index:
        return []
    seen = f"{stock.path}/{INDEX} {stock.index}"
    return [Finding("weights.index", "error", seen, "Fetch this file again", FORMAT)]


def shards_present(stock: Stock) -> list[Finding]:
    """SGLang loads what is there, and fails at the first tensor that is not. Source: MiniMax-AI/MiniMax-M2.5#37."""
    if not stock.missing:
        return []
    by = "its index names" if stock.indexed else "the numbers in the other files' names imply"
    share = f"{len(stock.missing)} of the {len(stock.named)} shards that {by}"
    seen = f"{share} are not in {stock.path}: {brief(stock.missing)}"
    return [Finding("weights.missing", "error", seen, "Fetch the missing files", "MiniMax-AI/MiniMax-M2.5#37")]


def shards_whole(stock: Stock) -> list[Finding]:
    """A shard ends where its header says. SGLang tells otherwise minutes into loading. Source: lyogavin/airllm#137."""
    unread = stock.strangers if stock.indexed else ()
    return [
        Finding(
            "weights.broken",
            "warning" if name in unread else "error",
            f"{stock.path}/{name} {why}{', and no index names it' if name in unread else ''}",
            "Move it away" if name in unread else "Fetch this file again",
            "lyogavin/airllm#137",
        )
        for name, why in stock.broken.items()
    ]


def none_partial(stock: Stock) -> list[Finding]:
    """What a downloader left unfinished: harmless beside a complete model, else what it was at. Source: C23's links."""
    if not stock.partial:
        return []
    whole = not (stock.index or stock.missing or any(fault.severity == "error" for fault in shards_whole(stock)))
    return [
        Finding(
            "weights.partial",
            "warning" if whole else "error",
            f"Unfinished downloads lie in {stock.path}: {brief(stock.partial)}",
            "Remove them: no shard is missing" if whole else "Let that download finish, or remove them and fetch again",
            "huggingface/huggingface_hub#4228",
        )
    ]


def some_weights(stock: Stock) -> list[Finding]:
    """A folder without weights serves nothing. Source: ``srt/model_loader/loader.py``."""
    if stock.shards or stock.others or stock.named:
        return []
    seen = f"{stock.path} holds no weights: no *.safetensors, nor {', '.join('*' + end for end in OTHER_FORMATS)}"
    return [Finding("weights.none", "error", seen, "Fetch the weights, or correct model_weights_path", HERE)]


def none_foreign(stock: Stock) -> list[Finding]:
    """Weights that are not the model's: of another revision, or another model.

    Source: ``filter_duplicate_safetensors_files`` in ``srt/model_loader/weight_utils.py``, which leaves out what the
    index does not name.
    """
    published = "consolidated*.safetensors*"  # beside the shards, by Mistral, with the same weights
    foreign = [name for name in (*stock.strangers, *stock.indexes) if not fnmatch.fnmatchcase(name, published)]
    if not foreign:
        return []
    seen = (
        f"{stock.path} holds weights that are not named by {INDEX if stock.indexed else 'the others'}: {brief(foreign)}"
    )
    remedy = "Check that they belong to this model, and move them away if not"
    return [Finding("weights.foreign", "warning", seen, remedy, HERE)]


def a_tokenizer(stock: Stock) -> list[Finding]:
    """Without a tokenizer an engine ends at its start. Source: ``srt/utils/hf_transformers_utils.py``."""
    if stock.tokenizer:
        return []
    seen = f"{stock.path} holds no tokenizer: none of {', '.join(TOKENIZERS)}"
    return [Finding("weights.tokenizer", "error", seen, "Fetch the tokenizer's files, too", HERE)]


RULES: tuple[Callable[[Stock], list[Finding]], ...] = (
    config_readable,
    index_readable,
    some_weights,
    shards_present,
    shards_whole,
    none_partial,
    none_foreign,
    a_tokenizer,
)


# --- what is to be fetched


@dataclass(frozen=True)
class Wanted:
    """A file that the source has.

    ``name``    relative, with ``/`` between folders
    ``size``    bytes; -1 where the source has not told
    ``sha256``  hex, or empty where the source tells none
    ``blob``    git's name of the content (SHA-1 of ``blob <size>\\0`` and it), which hubs tell of small files; or empty
    ``origin``  where it is fetched from: a URL, or the path of a file
    """

    name: str
    size: int = -1
    sha256: str = ""
    blob: str = ""
    origin: str = ""


def checked_names(names: Iterable[str]) -> list[str]:
    """The names, all of which must lie in the folder that they are written to. Raises WeightsError."""
    checked = list(names)
    for name in checked:
        path = PurePosixPath(name)
        plain = name == str(path) and not path.is_absolute() and "\\" not in name and name.isprintable()
        if not plain or {"..", "."} & set(path.parts) or path.parts[:1] in ((), (OWN,)):
            seen = f"the source names a file {name!r}, which is no plain path below the model's folder"
            raise WeightsError(Finding("weights.name", "error", seen, "Use another source: this one is damaged", HERE))
    return checked


def chosen(names: Iterable[str], include: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """Those names that a pattern of ``include`` fits and none of ``exclude`` (fnmatch; ``*`` crosses folders)."""
    return [
        name
        for name in names
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in include)
        and not any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude)
    ]


def checksums(text: str) -> dict[str, str]:
    """File name -> SHA-256 of a list as ``sha256sum`` prints it. Raises WeightsError.

    Lines that begin with ``#`` and empty ones are passed over; what ``./`` begins is named without it.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        entry = _LINE.fullmatch(line.strip())
        if entry is None or line.startswith("\\"):
            seen = f"line {number} of model_weights_checksums is not what sha256sum prints: {line.strip()[:80]!r}"
            raise WeightsError(
                Finding("weights.checksums", "error", seen, "Make the list with sha256sum", "sha256sum(1)")
            )
        found[entry[2].removeprefix("./")] = entry[1].lower()
    if not found:
        remedy = "Make the list with sha256sum in the model's folder"
        raise WeightsError(Finding("weights.checksums", "error", "model_weights_checksums names no file", remedy, HERE))
    return dict(zip(checked_names(found), found.values(), strict=True))


def from_listing(listing: Sequence[Mapping[str, Any]], include: Sequence[str], exclude: Sequence[str]) -> list[Wanted]:
    """The chosen files of a hub's repository, by what ``list_repository.py`` printed of each. Raises WeightsError."""
    by_name = {str(entry["name"]): entry for entry in listing}
    names = checked_names(chosen(sorted(by_name), include, exclude))
    return [
        Wanted(
            name,
            int(by_name[name]["size"]),
            str(by_name[name].get("sha256") or ""),
            "" if by_name[name].get("sha256") else str(by_name[name].get("blob") or ""),
            str(by_name[name]["url"]),
        )
        for name in names
    ]


def from_checksums(text: str, url: str) -> list[Wanted]:
    """The files of a list of checksums, each below an address. Raises WeightsError."""
    return [
        Wanted(name, sha256=digest, origin=f"{url.rstrip('/')}/{urllib.parse.quote(name)}")
        for name, digest in sorted(checksums(text).items())
    ]


def from_folder(folder: Path) -> list[Wanted]:
    """Every file of a folder but hidden and unfinished ones, with its own manifest's hashes. Raises WeightsError."""
    names, _size = _walk(folder)
    known = manifest(folder) or {}
    recorded = known.get("files", {})
    return [
        Wanted(name, status.st_size, recorded.get(name, {}).get("sha256", ""), "", str(folder / name))
        for name in checked_names(n for n in names if not n.startswith(".") and not _is_partial(n))
        for status in [(folder / name).stat()]
    ]


def from_manifest(content: Mapping[str, Any], url: str) -> list[Wanted]:
    """What a node that serves its folder has: file n of its sorted names is at ``url/n``. Raises WeightsError."""
    entries = content["files"]
    return [
        Wanted(name, int(entries[name]["size"]), str(entries[name]["sha256"]), "", f"{url}/{number}")
        for number, name in enumerate(checked_names(sorted(entries)))
    ]


def announced(source: str, wanted: Sequence[Wanted]) -> list[Finding]:
    """What a source lacks by the names of its files, before the first byte is fetched."""
    top = [file.name for file in wanted if "/" not in file.name]
    shards = tuple(name for name in top if name.endswith(".safetensors"))
    stock = Stock(
        path=source,
        named=_implied(shards),
        shards=shards,
        others=_others(top),
        tokenizer=_has_tokenizer(top),
    )
    found = [finding for rule in (some_weights, shards_present, a_tokenizer) for finding in rule(stock)]
    if CONFIG not in top:
        remedy = "Name a model in the format of Hugging Face"
        found.insert(0, Finding("weights.config", "error", f"{source} has no {CONFIG}", remedy, FORMAT))
    return found


# --- what is there already


def manifest(folder: Path) -> dict[str, Any] | None:
    """What was completely fetched into a folder; None where nothing was."""
    return wheels.read_manifest(str(folder / OWN))


def under_way(folder: Path) -> bool:
    """Whether a folder is one that is being filled, or whose filling was interrupted: it holds no model yet."""
    return (folder / OWN).is_dir() and manifest(folder) is None


def identity(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a model is fetched as: the same in every run that wants the same files, however they are reached.

    ``given``  the parameters of the module ``model_weights``
    """
    source = given["source"]
    what = {"source": source, **{key: given[key] for key in _KEYS[source]}}
    if source == "url":
        # By their hashes they are the same from any mirror.
        what["checksums"] = hashlib.sha256(str(given["checksums"]).strip().encode()).hexdigest()
    return what


@dataclass(frozen=True)
class Fetched:
    """What a folder that a role fetches into tells of its files by itself: sizes and times, nothing is hashed.

    ``what``     what it was completely fetched as; None where that has not happened
    ``begun``    whether fetching was begun
    ``removed``  files that were fetched and are gone
    ``changed``  file -> how it differs from what was fetched
    ``refused``  those of ``changed`` that lay there before, so that the role does not replace them
    ``files``, ``bytes``  what is there, files under way included
    """

    what: Mapping[str, Any] | None = None
    begun: bool = False
    removed: tuple[str, ...] = ()
    changed: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    files: int = 0
    bytes: int = 0

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Fetched:
        """What ``dataclasses.asdict`` gave, also after JSON. Raises TypeError for anything else."""
        made: dict[str, Any] = {name: tuple(it) if isinstance(it, list) else it for name, it in values.items()}
        return cls(**made)


def fetched(folder: Path) -> Fetched:
    """Compare a folder with its manifest, or with what an interrupted transfer has written down."""
    known = _object(folder / OWN / wheels.MANIFEST)
    entries = (known or _object(folder / OWN / LEDGER) or {}).get("files")
    removed, changed, refused = [], {}, []
    for name, entry in sorted(entries.items()) if isinstance(entries, dict) else ():
        try:
            size, time = stamp(folder / name)
            if size != entry["size"]:
                changed[name] = f"{size} bytes, and {entry['size']} were fetched"
            elif time != entry["mtime_ns"]:
                changed[name] = "written again since it was fetched"
            if size != entry["size"] and not entry["ours"]:
                refused.append(name)
        except OSError:
            removed.append(name)
        except (LookupError, TypeError):
            changed[name] = f"its entry in {OWN} is damaged"
    names, stored_bytes = _walk(folder)
    count = sum(not name.startswith(f"{OWN}/") for name in names)
    what = None if known is None else known.get("what") or {}
    begun = known is None and (folder / OWN).is_dir()
    return Fetched(what, begun, tuple(removed), changed, tuple(refused), count, stored_bytes)


def judge_fetched(there: Fetched, stock: Stock, wanted: Mapping[str, Any], size_gb: float = 0) -> list[Finding]:
    """A folder that a role will fetch into: what it fetches again is a warning, what it refuses is an error.

    ``wanted``   of ``identity``, as much as is known before the role runs
    ``size_gb``  of the whole model, 0 where that is not known
    """
    folder = Path(stock.path)
    if there.what is not None and any(there.what.get(key) != value for key, value in wanted.items()):
        return [_another(folder, {key: there.what.get(key) for key in wanted}, wanted)]
    found = [conflict(folder / name, there.changed[name]) for name in there.refused]
    again = [f"{name} (removed)" for name in there.removed]
    again += [f"{name} ({why})" for name, why in there.changed.items() if name not in there.refused]
    if again:
        seen = f"{len(again)} files in {stock.path} are not what was fetched: {brief(again)}"
        remedy = "Run the role model_weights, which hashes them and fetches again what differs"
        found.append(Finding("weights.again", "warning", seen, remedy, HERE))
    if there.begun:
        of = f" of {size_gb:g} GB" if size_gb else ""
        seen = f"{amount(there.bytes)}{of} lie in {stock.path}, in {there.files} whole files and parts of others"
        remedy = "Run the role model_weights, which goes on there"
        found.append(Finding("weights.begun", "info", seen, remedy, HERE))
    touched = {*there.removed, *there.changed}
    rest = replace(
        stock,
        index="" if INDEX in touched else stock.index,
        config="" if CONFIG in touched else stock.config,
        broken={name: why for name, why in stock.broken.items() if name not in touched},
    )
    whole = there.what is not None and not touched
    rules = RULES if whole else (config_readable, index_readable, shards_whole)
    # Of these nothing is fetched again: they have the size and time that was recorded, or are not the role's.
    mended = ("weights.config", "weights.index", "weights.broken")
    remedy = "Move it away, and run the role model_weights, which then fetches it"
    for fault in (fault for rule in rules for fault in rule(rest)):
        found.append(replace(fault, remedy=remedy) if fault.id in mended else fault)
    return found


def stamp(path: Path) -> tuple[int, int]:
    """Size and time of last change in ns: what a file that nobody touched keeps."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def record(path: Path, sha256: str, ours: bool) -> dict[str, Any]:
    """A file's entry in the manifest; ``ours`` says that it was written by this collection."""
    size, changed = stamp(path)
    return {"size": size, "mtime_ns": changed, "sha256": sha256, "ours": ours}


def untouched(folder: Path, entries: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Those files of a manifest or ledger that are there with the size and time that was recorded."""
    found = set()
    for name, entry in entries.items():
        with contextlib.suppress(OSError):
            if stamp(folder / name) == (entry["size"], entry["mtime_ns"]):
                found.add(name)
    return found


def complete(folder: Path, what: Mapping[str, Any]) -> bool:
    """Whether a folder holds just what was fetched as this; nothing is hashed."""
    found = manifest(folder)
    if found is None or found.get("what") != what:
        return False
    return len(untouched(folder, found["files"])) == len(found["files"])


def another(folder: Path, what: Mapping[str, Any]) -> list[Finding]:
    """A folder that holds another model or revision is left alone: a service may be running from it."""
    found = manifest(folder)
    if found is None or found.get("what") == what:
        return []
    there = found.get("what") or {}
    return [_another(folder, there, what)]


def _another(folder: Path, there: Mapping[str, Any], what: Mapping[str, Any]) -> Finding:
    differs = sorted(key for key in {*there, *what} if there.get(key) != what.get(key))
    told = ", ".join(f"{key} {_short(there.get(key))}, wanted is {_short(what.get(key))}" for key in differs)
    return Finding(
        "weights.another",
        "error",
        f"{folder} was fetched as something else: {told}",
        "Set model_weights_path to another folder, such as .../<model>/<revision>, or remove this one first",
        HERE,
    )


def conflicts(folder: Path, wanted: Sequence[Wanted], ours: Iterable[str]) -> list[Finding]:
    """Files that are there, are not ours and cannot be what is wanted, by their size alone."""
    mine, found = set(ours), []
    for file in wanted:
        path = folder / file.name
        if file.name in mine or file.size < 0 or not path.exists():
            continue
        if path.is_dir() or path.stat().st_size != file.size:
            found.append(
                conflict(path, "it is a folder" if path.is_dir() else f"{path.stat().st_size} bytes, not {file.size}")
            )
    return found


def conflict(path: Path, why: str) -> Finding:
    """A file that somebody else put where one of the model's belongs."""
    seen = f"{path} was there before, and is not the source's file: {why}"
    return Finding("weights.conflict", "error", seen, "Move it away, or set model_weights_path to another folder", HERE)


def room(missing: int, free: int, path: str) -> list[Finding]:
    """Whether what is missing fits: the bytes, and a twentieth more, are to be free before the first is written."""
    need = round(missing * SPARE)
    if free >= need:
        return []
    return [
        Finding(
            "weights.disk",
            "error",
            f"{free / 1e9:.1f} GB are free for {path}; needed are {need / 1e9:.1f} GB: {missing / 1e9:.1f} GB that are "
            f"missing of the model, and 5 % to spare",
            f"Free {(need - free) / 1e9:.1f} GB, or set model_weights_path to a folder on a larger disk",
            "MiniMax-AI/MiniMax-M2.5#37",
        )
    ]


_SETTINGS = {
    "repository": "the hub's repository, organisation/name",
    "revision": "a commit of that repository, 40 hex digits: git ls-remote with the repository's address prints them",
    "url": "the address of a folder with the model's files",
    "checksums": "a file on the controller, or an address, with what sha256sum prints of the model's files",
    "folder": "the folder of the node that is copied",
}


def judge_settings(
    values: Mapping[str, Any], folders: Iterable[str | None] = (), hosts: Iterable[str] | None = None
) -> list[Finding]:
    """The settings of role ``model_weights`` that a source needs, and those that cannot mean what they say.

    ``values``   by the role's names; what is not there is judged elsewhere
    ``folders``  of the controller, where a list of checksums is looked for
    ``hosts``    of the inventory; None where they are not known
    """

    def given(name: str) -> str:
        return str(values.get(f"model_weights_{name}") or "")

    source = given("source")
    needs = {"huggingface": ("repository", "revision"), "url": ("url", "checksums"), "folder": ("folder",)}
    found = [
        Finding(
            "weights.setting",
            "error",
            f"model_weights_source is {source}, and model_weights_{name} is not set",
            f"Set model_weights_{name} to {_SETTINGS[name]}",
            "roles/model_weights/README.md",
        )
        for name in needs.get(source, ())
        if not given(name)
    ]
    if source == "huggingface" and given("repository") and not re.fullmatch(r"[\w.-]+/[\w.-]+", given("repository")):
        seen = f"model_weights_repository is {given('repository')!r}, not organisation/name"
        found.append(
            Finding("weights.setting", "error", seen, "Set it to such a name", "roles/model_weights/README.md")
        )
    for name in ("url", "endpoint"):
        if given(name) and not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s?#]*)?", given(name)):
            seen = f"model_weights_{name} is no plain address that begins with https:// or http:// and names no user"
            remedy = "Correct it; a credential belongs into model_weights_token"
            found.append(Finding("weights.setting", "error", seen, remedy, "roles/model_weights/README.md"))
        if given("token") and given(name).startswith("http://") and name in _used(source):
            seen = f"model_weights_token would go in clear to model_weights_{name}, which begins with http://"
            found.append(Finding("weights.token", "warning", seen, "Use an address with https://", HERE))
    if source == "huggingface" and given("revision") and not COMMIT.fullmatch(given("revision")):
        found.append(unpinned(given("revision"), ""))
    if source == "url" and given("checksums"):
        found += _listed(given("checksums"), [folder for folder in folders if folder])
    if hosts is not None and given("seed") and given("seed") not in hosts:
        seen = f"model_weights_seed is {given('seed')!r}, which is no host of the inventory"
        remedy = "Name a host that has the model, or set it to '' to fetch on each host"
        found.append(Finding("weights.setting", "error", seen, remedy, "roles/model_weights/README.md"))
    if source == "folder" and given("folder").rstrip("/") == given("path").rstrip("/") != "":
        seen = "model_weights_folder is model_weights_path: there is nothing to copy"
        found.append(Finding("weights.setting", "error", seen, "Set model_weights_source to path", HERE))
    return found


def _listed(checksums_: str, folders: Sequence[str]) -> list[Finding]:
    """A list of checksums on the controller; one behind an address is read by the node."""
    if "://" in checksums_:
        return []
    places = [Path(folder, checksums_) for folder in folders] or [Path(checksums_)]
    try:
        text = next((place.read_text() for place in places if place.is_file()), None)
        if text is not None:
            checksums(text)
            return []
        why = f"there is no file {' or '.join(dict.fromkeys(map(str, places)))}"
    except WeightsError as error:
        return list(error.findings)
    except (OSError, ValueError) as error:
        why = f"it cannot be read: {error}"
    remedy = "Put the list beside the inventory or the playbook, or give its full path or its address"
    seen = f"model_weights_checksums is {checksums_!r}, and {why}"
    return [Finding("weights.setting", "error", seen, remedy, "roles/model_weights/README.md")]


def wanted_by(values: Mapping[str, Any]) -> dict[str, Any]:
    """What of ``identity`` the settings tell on the controller; nothing where no role fetches.

    The list of checksums is left out: where it lies behind an address, only the node reads it.
    """
    source = values.get("model_weights_source")
    if source not in FETCHED:
        return {}
    return {"source": source, **{key: values.get(f"model_weights_{key}") for key in _KEYS[str(source)]}}


def waived(flags: Mapping[str, Any]) -> list[str]:
    """Ids of findings about a model's folder that do not count with these flags of SGLang, in any spelling of them.

    Weights that SGLang invents (``--load-format dummy``) need no files, other formats have files of their own, and a
    tokenizer may lie elsewhere.
    """
    given = {str(name).strip().lstrip("-").replace("_", "-"): value for name, value in flags.items()}
    format_ = given.get("load-format") or "auto"
    rooms = ("index", "none", "missing", "broken", "partial", "foreign")
    found = [] if format_ in INDEXED_FORMATS else [f"weights.{fault}" for fault in rooms]
    elsewhere = given.get("tokenizer-path") or given.get("skip-tokenizer-init") not in (None, False, "")
    return [*found, "weights.tokenizer"] if elsewhere else found


def unpinned(revision: str, commit: str) -> Finding:
    """A branch or tag moves; ``commit`` is where it points to now, empty where nobody has asked."""
    if commit:
        seen, remedy = (
            f"{revision!r} is no commit hash; now it is commit {commit}",
            f"Set model_weights_revision: {commit}",
        )
    else:
        seen = f"{revision!r} is no commit hash"
        remedy = f"Set model_weights_revision to {_SETTINGS['revision']}"
    return Finding(
        "weights.unpinned", "error", f"model_weights_revision {seen}", remedy, "roles/model_weights/README.md"
    )


# --- how far it is


@dataclass(frozen=True)
class Progress:
    """How far a transfer is: bytes and files, done and in all, and seconds since its begin.

    ``begun``  bytes that were there when it began
    """

    done: int
    total: int
    files_done: int
    files: int
    seconds: float
    begun: int = 0

    @property
    def rate(self) -> float:
        """Bytes a second since the begin."""
        return (self.done - self.begun) / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> float:
        """Seconds to the end at this rate; infinite while nothing moves."""
        return (self.total - self.done) / self.rate if self.rate > 0 else float("inf")

    def __str__(self) -> str:
        share = 100 * self.done // self.total if self.total > 0 else 100
        told = f"{self.files_done} of {self.files} files, {amount(self.done)} of {amount(self.total)} ({share} %)"
        if self.seconds < SETTLED:
            return told
        left = duration(self.left) if self.rate > 0 else "unknown"
        return f"{told}, {amount(self.rate)}/s, {left} left"


SETTLED = 5
"""Seconds that a rate needs to mean something."""


def amount(count: float) -> str:
    """Bytes: ``1.25 GB``, ``12.3 MB``, ``40 kB``."""
    if count >= 1e9:
        return f"{count / 1e9:.2f} GB"
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 07 s``, ``2 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def brief(names: Sequence[str]) -> str:
    """The first few names, and how many more."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _used(source: str) -> tuple[str, ...]:
    return {"huggingface": ("endpoint",), "url": ("url",)}.get(source, ())


def _has_tokenizer(names: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in TOKENIZERS)


def _others(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name.endswith(OTHER_FORMATS) and name not in NO_WEIGHTS)


def _is_partial(name: str) -> bool:
    return name.endswith(PARTIAL) or _RSYNC.fullmatch(os.path.basename(name)) is not None


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _walk(folder: Path) -> tuple[list[str], int]:
    """Relative names of all files, sorted, and their bytes; what cannot be looked into is left out."""
    names, size = [], 0
    for path, folders, files in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if name != ".git")
        for name in files:
            file = Path(path, name)
            with contextlib.suppress(OSError):
                size += file.stat().st_size
                names.append(file.relative_to(folder).as_posix())
    return sorted(names), size


def _object(path: Path) -> dict[str, Any] | None:
    """The JSON object of a file; None where there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _config(path: Path) -> str:
    """What is wrong with a config.json; one that is not there, or may not be read, is judged elsewhere."""
    try:
        config = json.loads(path.read_bytes())
    except OSError:
        return ""
    except (ValueError, RecursionError):
        return "is no JSON"
    if not isinstance(config, dict):
        return "is no JSON object"
    inner = config.get("text_config")
    if not config.get("architectures") and not (isinstance(inner, dict) and inner.get("architectures")):
        return "names no architectures"
    return "" if config.get("model_type") or config.get("auto_map") else "names no model_type"


def _index(path: Path) -> tuple[str, tuple[str, ...]]:
    """What is wrong with an index, and the shards that it names."""
    try:
        mapping = json.loads(path.read_bytes())["weight_map"]
        named = sorted(set(mapping.values()))
        if named and all(isinstance(name, str) and name == os.path.basename(name) for name in named):
            return "", tuple(named)
    except PermissionError:
        return "", ()
    except OSError as error:
        return f"cannot be read: {error.strerror}", ()
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    return "is damaged: it maps no tensors to files", ()


def _implied(shards: Sequence[str]) -> tuple[str, ...]:
    """All shards that names such as ``model-00002-of-00003.safetensors`` say that there are."""
    named: set[str] = set()
    for shard in shards:
        if parts := _NUMBERED.fullmatch(shard):
            before, _number, of, count, end = parts.groups()
            # Some begin at 0.
            first = 0 if f"{before}00000{of}{count}{end}" in shards else 1
            named |= {f"{before}{number:05}{of}{count}{end}" for number in range(first, int(count) + first)}
    return tuple(sorted(named))
