# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The kernel's command line: what it says, what it should say for GPUs to reach each other, and the files that make it.

ACS is set by the kernel's own ``pci=disable_acs_redir=``, before it forms IOMMU groups; writing the register later, as
with setpci, leaves it with groups that no longer tell who is isolated (NVIDIA/NV-Kernels#20).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ansible_collections.inference.sglang.plugins.module_utils import fitness
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding
from ansible_collections.inference.sglang.plugins.module_utils.hardware import Hardware

Iommu = Literal["passthrough", "off", "keep"]
Loader = Literal["grub", "systemd-boot", ""]

# Sorted after what cloud images and kdump-tools put there, as the last assignment counts.
DROP_IN = "etc/default/grub.d/zz-inference-sglang.cfg"
DEFAULTS = "etc/default/grub"
GRUB_CFG = "boot/grub/grub.cfg"
KERNEL_CMDLINE = "etc/kernel/cmdline"
# Set by systemd-boot, as documented in https://systemd.io/BOOT_LOADER_INTERFACE
LOADER_INFO = "sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
# In this order on the command line of every entry but the recovery ones (/etc/grub.d/10_linux).
VARIABLES = ("GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT")
EMPTIED = "# Taken back by Ansible; the file goes as soon as update-grub has run.\n"

PARAMETERS = "https://docs.kernel.org/admin-guide/kernel-parameters.html"
ACS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_REDIRECTS = {"ReqRedir", "CmpltRedir", "EgressCtrl"}  # what disable_acs_redir switches off
_ACS_OPTION = "disable_acs_redir="


class UnreadableError(ValueError):
    """A file of shell whose outcome cannot be told without running it."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """``iommu``: how it is to treat devices. ``bridges``: PCI addresses that are to redirect no request to the root."""

    iommu: Iommu = "keep"
    bridges: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Boot:
    """How a node boots.

    ``running``   command line of the running kernel
    ``lines``     what the next boot's is made of without this role's file: variable, or file, to its words
    ``fault``     why ``lines`` cannot be told; empty where they can
    ``drop_in``   this role's file; None where there is none
    ``stale``     whether GRUB's menu is older than that file
    """

    loader: Loader = ""
    running: str = ""
    lines: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""
    drop_in: str | None = None
    stale: bool = False


# The command line


def words(line: str, *, grub: bool = False) -> list[str]:
    """Split as the kernel does, which knows double quotes only, or as GRUB's shell does. Words keep their quotes."""
    quoted = r""""[^"]*"|'[^']*'|\\.|\S""" if grub else r""""[^"]*"|\S"""
    return [match[0] for match in re.finditer(rf"(?:{quoted})+", line, re.DOTALL)]


def plain(word: str) -> str:
    """A word without its quotes."""
    return re.sub(r"""\\(.)|["']""", r"\1", word)


def revised(line: Sequence[str], wanted: Wanted) -> tuple[list[str], list[str]]:
    """What becomes of each word, empty where it goes, and the words to append. A line that does already stays."""
    kept, added = list(line), []
    if wanted.iommu != "keep" and translation(line) not in (wanted.iommu, "off"):
        kept = [_without_iommu(word, wanted.iommu) for word in kept]
        added.append("iommu=pt" if wanted.iommu == "passthrough" else "iommu=off")
    has = bridges(line)
    if not set(wanted.bridges) <= set(has):
        # The kernel keeps the last list that it is given.
        kept = [_without(word, "pci", lambda value: value.startswith(_ACS_OPTION)) for word in kept]
        added.append(f"pci={_ACS_OPTION}{';'.join(dict.fromkeys((*has, *wanted.bridges)))}")
    return kept, added


def translation(line: Sequence[str]) -> str:
    """What a command line makes of the IOMMU: ``passthrough``, ``translated``, ``off``, empty where it does not say.

    ``amd_iommu=off`` and ``intel_iommu=off`` say something on one maker's processors only, and count for nothing here.
    """
    found = ""
    for word in line:
        name, _sign, value = plain(word).partition("=")
        if name == "iommu.passthrough":
            found = "passthrough" if value[:2].lower() in ("1", "y", "ye", "t", "tr", "on") else "translated"
        for choice in value.split(",") if name == "iommu" else ():
            if choice == "off":
                return "off"
            found = {"pt": "passthrough", "nopt": "translated"}.get(choice, found)
    return found


def bridges(line: Sequence[str]) -> list[str]:
    """The PCI addresses, or other names of devices, whose redirection a command line switches off."""
    found: list[str] = []
    for word in line:
        name, _sign, value = plain(word).partition("=")
        for option in value.split(",") if name == "pci" else ():
            if option.startswith(_ACS_OPTION):
                found = [_address(device) for device in option.removeprefix(_ACS_OPTION).split(";") if device]
    return found


def _address(device: str) -> str:
    """With its domain, which the kernel takes for 0 where it is left out."""
    return f"0000:{device}" if re.fullmatch(r"[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", device) else device


def _without_iommu(word: str, wanted: str) -> str:
    name = plain(word).partition("=")[0]
    if name == "iommu.passthrough":
        return ""
    if wanted == "off" and name in ("intel_iommu", "amd_iommu"):
        return _without(word, name, lambda value: value in ("on", "force_enable"))
    contradicting = ("nopt", "pt", "force") if wanted == "off" else ("nopt",)
    return _without(word, "iommu", lambda value: value in contradicting)


def _without(word: str, parameter: str, goes: Callable[[str], bool]) -> str:
    """A word without some choices of its list; the same word where it has none of them."""
    name, _sign, value = plain(word).partition("=")
    choices = value.split(",")
    left = [choice for choice in choices if not goes(choice)]
    if name != parameter or left == choices:
        return word
    return _quoted(f"{name}={','.join(left)}") if left else ""


def _quoted(word: str) -> str:
    """As GRUB's shell takes it, to which a bare ; ends the command."""
    return f'"{word}"' if re.search(r"[;&|<>{}\s]", word) else word


# GRUB's settings, which are a shell's


Word = list[tuple[str, str]]
"""Parts of a word: kind (``text`` without quotes, ``quoted``, ``name`` of a variable, ``opaque``) and what it holds."""

_BARE = re.compile(
    r"""(?P<blank>[ \t]+)
    | (?P<joined>\\\n)
    | (?P<end>[\n;])
    | '(?P<single>[^']*)'
    | "(?P<double>(?:[^"\\`]|\\.|`[^`]*`)*)"
    | `(?P<opaque>[^`]*)`
    | \\(?P<escaped>[^\n])
    | \$(?P<name>[A-Za-z_]\w*|\{[A-Za-z_]\w*\})
    | (?P<text>[^\s;&|()<>'"`\\$*?\[\]~{}]+)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_INSIDE = re.compile(
    r"""(?P<opaque>`[^`]*`|\$(?![A-Za-z_{])|\$\{(?![A-Za-z_]\w*\}))
    | \\(?P<escaped>[$`"\\])
    | (?P<joined>\\\n)
    | \$(?P<name>[A-Za-z_]\w*|\{[A-Za-z_]\w*\})
    | (?P<quoted>[^$`\\]+|\\)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


def assignments(text: str, variables: Mapping[str, str | None]) -> dict[str, str | None]:
    """The variables after a shell has read a file of assignments.

    ``variables``  those before it; None for one whose value cannot be told
    Raises UnreadableError where something other than an assignment may set one of ``VARIABLES``.
    """
    found = dict(variables)
    try:
        for word in _assigning(text):
            name, value = word[0][1].split("=", 1)
            parts = [("text", value), *word[1:]]
            values = [found.get(part.strip("{}")) if kind == "name" else part for kind, part in parts]
            unknown = any(kind == "opaque" for kind, _part in parts) or None in values
            found[name] = None if unknown else "".join(map(str, values))
    except UnreadableError:
        if any(name in text for name in VARIABLES):
            raise
    return found


def _assigning(text: str) -> list[Word]:
    """The words of a file in which every one assigns. Raises UnreadableError for any other."""
    found: list[Word] = []
    word: Word = []
    position = 0
    while position <= len(text):
        token = _BARE.match(text, position)
        kind = token.lastgroup if token else ""
        comment = not word and text[position : position + 1] == "#"
        if kind in ("blank", "end") or comment or position == len(text):
            if word and not (word[0][0] == "text" and re.match(r"[A-Za-z_]\w*=", word[0][1])):
                raise UnreadableError(f"{word[0][1].strip()!r} does not assign")
            found += [word] if word else []
            word = []
        if position == len(text):
            break
        if comment:
            position = text.find("\n", position) if "\n" in text[position:] else len(text)
            continue
        if token is None:
            raise UnreadableError(f"{text[position:].partition(chr(10))[0]!r} is not understood")
        position = token.end()
        if kind == "double":
            word += _inside(token["double"]) or [("quoted", "")]
        elif kind in ("single", "escaped"):
            word.append(("quoted", token[kind]))
        elif kind in ("opaque", "name", "text"):
            word.append((kind, token[kind]))
    return found


def _inside(text: str) -> Word:
    """The parts of what stands in double quotes."""
    parts: Word = []
    for token in _INSIDE.finditer(text):
        kind = token.lastgroup or ""
        if kind != "joined":
            parts.append(("quoted" if kind == "escaped" else kind, token[kind]))
    return parts


def single_quoted(text: str) -> str:
    """A text as one word of a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


# A node's files


def read(root: Path) -> Boot:
    """How the system below a folder boots. Raises OSError where a file cannot be read."""
    loader = _loader(root)
    drop_in = _text(root / DROP_IN)
    lines: dict[str, str] = {}
    fault = ""
    if loader == "grub":
        try:
            lines = _grub_lines(root)
        except UnreadableError as problem:
            fault = str(problem)
    elif loader == "systemd-boot":
        lines = {f"/{KERNEL_CMDLINE}": (_text(root / KERNEL_CMDLINE) or "").strip()}
    stale = drop_in is not None and (root / GRUB_CFG).stat().st_mtime_ns < (root / DROP_IN).stat().st_mtime_ns
    return Boot(
        loader=loader,
        running=(_text(root / "proc/cmdline") or "").strip(),
        lines=lines,
        fault=fault,
        drop_in=drop_in,
        stale=stale,
    )


def _loader(root: Path) -> Loader:
    # The variable's first four bytes are its attributes, the rest is UTF-16.
    told = (root / LOADER_INFO).read_bytes()[4:].decode("utf-16-le", "replace") if (root / LOADER_INFO).exists() else ""
    if told.startswith("systemd-boot") and (root / KERNEL_CMDLINE).is_file():
        return "systemd-boot"
    return "grub" if (root / GRUB_CFG).is_file() and (root / DEFAULTS).is_file() else ""


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="surrogateescape") if path.is_file() else None


def _grub_lines(root: Path) -> dict[str, str]:
    """What grub-mkconfig reads on Debian and Ubuntu, in its order, without this role's file."""
    found: dict[str, str | None] = dict.fromkeys(VARIABLES, "")
    ours = root / DROP_IN
    for path in (root / DEFAULTS, *sorted((root / f"{DEFAULTS}.d").glob("*.cfg"))):
        if path == ours:
            continue
        try:
            found = assignments(_text(path) or "", found)
        except UnreadableError as problem:
            raise UnreadableError(f"/{path.relative_to(root)}: {problem}") from problem
        if unknown := [name for name in VARIABLES if found[name] is None]:
            raise UnreadableError(f"/{path.relative_to(root)}: {unknown[0]} is the outcome of a command")
    return {name: found[name] or "" for name in VARIABLES}


# What is wanted, and what that changes


def wanted(hardware: Hardware, iommu: Iommu, named: Sequence[str] | None, boot: Boot) -> Wanted:
    """The parameters that a node needs. What this role has set once stays: after the boot nothing shows its reason.

    Over NVLink nothing passes the root complex, so that neither hinders, unless settings name it.

    ``iommu``  what translates is to become this; an IOMMU that is off, or passes, is left alone
    ``named``  bridges; None for those above the GPUs that redirect requests now
    """
    ours = words(_additions(boot.drop_in or ""), grub=True)
    several = len(hardware.gpus) > 1 and not fitness.nvlinked(hardware)
    needed = (several and hardware.kernel.iommu == "translated") or (iommu == "off" and hardware.kernel.iommu != "off")
    if named is None:
        redirecting = {
            bridge.address
            for gpu in hardware.gpus
            for bridge in gpu.bridges
            if several and _REDIRECTS.intersection(bridge.acs or ())
        }
        named = list(dict.fromkeys((*bridges(ours), *sorted(redirecting))))
    return Wanted(
        iommu=iommu if needed or translation(ours) else "keep", bridges=tuple(_address(name) for name in named)
    )


def _additions(drop_in: str) -> str:
    """What this role's file appends, or the whole line that it sets."""
    try:
        return assignments(drop_in, dict.fromkeys(VARIABLES, "")).get(VARIABLES[1]) or ""
    except UnreadableError:
        return ""


def after(boot: Boot, wanted: Wanted) -> dict[str, str]:
    """``Boot.lines`` as they should be."""
    grub = boot.loader == "grub"
    split = {name: words(line, grub=grub) for name, line in boot.lines.items()}
    kept, added = revised([word for line in split.values() for word in line], wanted)
    result = {}
    for name, line in split.items():
        left = [word for word in kept[: len(line)] if word]
        kept = kept[len(line) :]
        result[name] = " ".join(left) if left != line else boot.lines[name]
    if result and added:
        last = list(result)[-1]
        result[last] = " ".join([*filter(None, [result[last]]), *(_quoted(word) if grub else word for word in added)])
    return result


def drop_in(boot: Boot, wanted: Wanted) -> str:
    """This role's file; empty where the next boot's command line needs none.

    It appends, so that what the node's own files say later counts as well. Only a variable that had to lose a word is
    set as a whole.
    """
    lines = []
    for name, line in after(boot, wanted).items():
        before = boot.lines[name]
        if line == before:
            continue
        if line.startswith(f"{before} " if before else ""):
            lines.append(f'{name}="${name}"{single_quoted(" " + line.removeprefix(before).strip())}')
        else:
            lines.append(f"# Whole, as it had a word that contradicts.\n{name}={single_quoted(line)}")
    text = "\n".join(lines)
    return f"# Written by Ansible for role node_settings, which also takes it back.\n{text}\n" if text else ""


def write(root: Path, boot: Boot, text: str, update: Callable[[], object]) -> None:
    """Have this role's file say this, and GRUB's menu made from it; without a text the file goes.

    ``update``  runs update-grub. If it raises, the file is as it was before.
    A run that is killed in between leaves a file that is newer than the menu, which the next run finds ``stale``.
    """
    path = root / DROP_IN
    try:
        _replace(path, text or EMPTIED)
        update()
    except BaseException:
        if boot.drop_in is None:
            path.unlink(missing_ok=True)
        else:
            _replace(path, boot.drop_in)
        raise
    if not text:
        path.unlink()


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.chmod(0o644)
    new.replace(path)


# Findings


def leftover(boot: Boot) -> list[Finding]:
    """What the running kernel still has of a file that is taken back."""
    given = set(map(plain, words(boot.running)))
    added = [word for word in words(_additions(boot.drop_in or ""), grub=True) if plain(word) in given]
    if not added:
        return []
    return [
        Finding(
            "boot.reboot_pending",
            "warning",
            f"The running kernel was booted with {' '.join(added)}",
            "Reboot the node to be rid of it",
            "/proc/cmdline",
        )
    ]


def _unknown_loader(boot: Boot, wanted: Wanted, fix: bool) -> list[Finding]:
    if boot.loader or _satisfied(boot.running, wanted):
        return []
    return [
        Finding(
            "boot.loader_unknown",
            "warning",
            f"The running kernel's command line lacks {_lacking(boot.running, wanted)}, and neither GRUB nor "
            "systemd-boot is found on the node",
            "Add it with the tools of whatever boots the node, and reboot",
            PARAMETERS,
        )
    ]


def _unreadable(boot: Boot, wanted: Wanted, fix: bool) -> list[Finding]:
    if not boot.fault or _satisfied(boot.running, wanted):
        return []
    return [
        Finding(
            "boot.unreadable",
            "warning",
            f"The next command line cannot be told, so nothing was changed. {boot.fault}",
            f"Have it set {VARIABLES[1]} by plain assignments, or add {_lacking(boot.running, wanted)} there, run "
            "update-grub and reboot",
            PARAMETERS,
        )
    ]


def _change(boot: Boot, wanted: Wanted, fix: bool) -> list[Finding]:
    """The exact change, where this run does not make it."""
    needed = drop_in(boot, wanted) if boot.loader == "grub" else ""
    if boot.loader == "grub" and (fix or (boot.drop_in or "") == needed):
        return []
    changes = [
        f"{name}: {line!r} should be {changed!r}"
        for (name, line), changed in zip(boot.lines.items(), after(boot, wanted).values(), strict=True)
        if line != changed
    ]
    if not changes:
        return []
    remedy = (
        "Set preflight_fix_boot: true, or change it and run update-grub"
        if boot.loader == "grub"
        else "Change it and run kernel-install add for each kernel"
    )
    return [
        Finding(
            "boot.parameters",
            "warning",
            "; ".join(changes),
            f"{remedy}; then reboot",
            ACS if wanted.bridges else PARAMETERS,
        )
    ]


def _reboot(boot: Boot, wanted: Wanted, fix: bool) -> list[Finding]:
    if _satisfied(boot.running, wanted) or _change(boot, wanted, fix) or not boot.loader or boot.fault:
        return []
    return [
        Finding(
            "boot.reboot_pending",
            "warning",
            f"The next boot will have {_lacking(boot.running, wanted)}, which the running kernel was not given",
            "Reboot the node when no instance is needed; nothing here does it",
            "/proc/cmdline",
        )
    ]


RULES = (_unknown_loader, _unreadable, _change, _reboot)


def judge(boot: Boot, wanted: Wanted, fix: bool) -> list[Finding]:
    """``fix``: whether this run writes what is missing."""
    return [finding for rule in RULES for finding in rule(boot, wanted, fix)]


def _satisfied(line: str, wanted: Wanted) -> bool:
    split = words(line)
    return revised(split, wanted) == (split, [])


def _lacking(line: str, wanted: Wanted) -> str:
    split = words(line)
    kept, added = revised(split, wanted)
    gone = [word for word, left in zip(split, kept, strict=True) if word != left]
    return " ".join(added) + (f" instead of {' '.join(gone)}" if gone else "")
