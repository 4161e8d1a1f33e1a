# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command-line flags of an SGLang release: judging settings by them, making arguments of them.

``flag_sources`` reads a release's table; ``roles/sglang/files/flags/`` holds those of the supported releases, and
``flag_history`` knows what changed between them.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, as_text, errors

if TYPE_CHECKING:
    from ansible_collections.inference.sglang.plugins.module_utils.flag_history import History

Kind = Literal["switch", "value", "list"]

SOURCE = "sglang/srt/server_args.py"

# An argument list is readable by every user of the node, and SGLang 0.5.12.post1 logs its whole ServerArgs at start.
SECRETS = frozenset({"--api-key", "--admin-api-key", "--ssl-keyfile-password"})

_TAKES = {
    "int": "a whole number",
    "float": "a number",
    "json": "JSON",
    "human_readable_int": "a whole number, or one with a suffix (25.6k, 4Ki)",
}

# sglang/srt/utils/common.py, human_readable_int: fractions are for powers of 1000 only.
_SUFFIXED = re.compile(r"\d+(\.\d+)?[kMGT]|\d+[KMGT]i")


@dataclass(frozen=True)
class Flag:
    """One flag of SGLang's parser.

    ``name``        first spelling, with its dashes (``--pp-size``)
    ``aliases``     the other spellings, those that switch off (``--no-…``) among them
    ``kind``        ``switch`` stands alone, ``value`` takes one argument, ``list`` takes several
    ``type``        ``str``, ``int``, ``float``, ``json``, ``bool``, or the name of SGLang's own conversion function
    ``choices``     what it accepts; None where that is anything
    ``default``     SGLang's default, a JSON value
    ``deprecated``  SGLang's own words, or empty
    ``replacement``  what SGLang names in its place, as it writes it (``--attn-dp-size <dp-size>``), or empty
    ``refused``     SGLang's own words, where its parser knows the flag only to end with them; or empty
    ``hidden``      SGLang's help does not show it
    ``bare``        a ``value`` that may also stand alone
    ``runtime``     ``choices`` or ``default``, where the sources do not tell it: None stands for what a run decides
    """

    name: str
    aliases: tuple[str, ...] = ()
    kind: Kind = "value"
    type: str = "str"
    choices: tuple[str | int, ...] | None = None
    default: Any = None
    deprecated: str = ""
    replacement: str = ""
    refused: str = ""
    hidden: bool = False
    bare: bool = False
    runtime: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


class FlagTable(Mapping[str, Flag]):
    """The flags of one release by every exact spelling.

    ``release`` and ``history`` are set where the tables of the other releases are at hand (``flag_history``): a finding
    then says since when a flag is gone, and what replaces it. Raises ValueError where two flags share a spelling.
    """

    def __init__(self, flags: Iterable[Flag], release: str = "", history: History | None = None) -> None:
        self.flags = tuple(sorted(flags, key=lambda flag: flag.name))
        self.release = release
        self.history = history
        self._by_spelling: dict[str, Flag] = {}
        for flag in self.flags:
            for spelling in flag.spellings:
                if spelling in self._by_spelling:
                    raise ValueError(f"{spelling} is two flags")
                self._by_spelling[spelling] = flag

    @property
    def shown(self) -> list[str]:
        """The spellings that are there to be used: not refused, and in SGLang's help."""
        return [spelling for spelling, flag in self.items() if not (flag.refused or flag.hidden)]

    def __getitem__(self, spelling: str) -> Flag:
        return self._by_spelling[spelling]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_spelling)

    def __len__(self) -> int:
        return len(self._by_spelling)

    def to_json(self) -> str:
        """A list of objects, one flag a line, in the order of their names; fields at their default are left out."""
        omitted = {field.name: field.default for field in fields(Flag)}
        rows = (
            {key: value for key, value in asdict(flag).items() if key == "name" or value != omitted[key]}
            for flag in self.flags
        )
        return "[\n" + ",\n".join(compact_json(row) for row in rows) + "\n]\n"

    @classmethod
    def from_json(cls, text: str) -> FlagTable:
        """The table that ``to_json`` wrote."""
        rows = json.loads(text)
        for row in rows:
            row.update({key: tuple(row[key]) for key in ("aliases", "choices", "runtime") if key in row})
        return cls(Flag(**row) for row in rows)


def compact_json(value: object) -> str:
    """JSON without spaces; what JSON has no form for, as a date, becomes its text."""
    return json.dumps(_plain(value), default=str, ensure_ascii=False, separators=(",", ":"))


def _plain(value: object) -> object:
    """The value with keys that JSON can have: YAML takes ``2024-01-01:`` for a date."""
    if isinstance(value, Mapping):
        return {
            key if key is None or isinstance(key, str | int | float) else str(key): _plain(item)
            for key, item in value.items()
        }
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def check(flags: Mapping[str, object], table: FlagTable) -> list[Finding]:
    """Judge settings by a release's flags.

    ``flags`` has SGLang's exact names, with or without the leading dashes (``pp-size: 8``). Null, an empty string and
    an empty list mean that the flag is not set. A name must be exact although argparse takes any unambiguous
    beginning of one: the next release may give that beginning another meaning.
    """
    findings: list[Finding] = []
    given: dict[str, str] = {}
    values: dict[str, object] = {}
    for key, value in flags.items():
        spelling = exact(key)
        flag = table.get(spelling)
        if flag is None or flag.refused:
            findings.append(_absent(spelling, table))
        elif left_out(spelling, value, flag):
            continue
        elif flag.name in SECRETS:
            findings.append(
                Finding(
                    "flag.secret",
                    "error",
                    f"{spelling} would stand in the process list and in the log of the service",
                    f"Remove {spelling} from the flags: a secret is to be given by a file, not as a flag",
                    SOURCE,
                )
            )
        elif flag.name in given:
            findings.append(
                Finding(
                    "flag.twice",
                    "error",
                    f"{given[flag.name]} and {spelling} are the same flag, and the last one would win",
                    "Keep one of the two",
                    SOURCE,
                )
            )
        else:
            given[flag.name], values[flag.name] = spelling, value
            if flag.deprecated:
                findings.append(_deprecated(spelling, flag, table))
            findings += _check_value(spelling, value, flag, table)
    if table.history:
        findings += table.history.meanings(values, table.release)
    return findings


def arguments(flags: Mapping[str, object], table: FlagTable) -> list[list[str]]:
    """The settings as arguments, one inner list a flag, in the order given: ``[["--pp-size", "8"]]``.

    A flag that is not set and a switch that is false are left out; ``false`` on a switch that has a ``--no-…``
    spelling gives that one. Raises ValueError where ``check`` finds an error.
    """
    faults = errors(check(flags, table))
    if faults:
        raise ValueError(as_text(faults))
    result: list[list[str]] = []
    for key, value in flags.items():
        spelling = exact(key)
        flag = table[spelling]
        if left_out(spelling, value, flag):
            continue
        if flag.kind == "switch":
            result.append([spelling if _boolean(value) else _opposite(spelling)])
        elif flag.bare and value is True:
            result.append([spelling])
        elif flag.kind == "list":
            result.append([spelling, *map(_text, _items(value))])
        elif _looks_like_a_flag(_text(value)):
            result.append([f"{spelling}={_text(value)}"])
        else:
            result.append([spelling, _text(value)])
    return result


def exact(key: object) -> str:
    """A flag as a user may write it, with the dashes that SGLang wants."""
    return "--" + str(key).strip().lstrip("-")


def accepts(flag: Flag, value: object) -> bool:
    """Whether this is a value for the flag, by its kind, type and choices."""
    return not _check_value(flag.name, value, flag, FlagTable([flag]))


def left_out(spelling: str, value: object, flag: Flag) -> bool:
    """Whether a value stands for a flag that is not set: null, an empty text or list, false for a plain switch."""
    if value is None or (isinstance(value, str | list | tuple) and len(value) == 0):
        return True
    return flag.kind == "switch" and _boolean(value) is False and _opposite(spelling) not in flag.spellings


def _boolean(value: object) -> bool | None:
    """A switch's value; ``--extra-vars name=value`` makes strings of booleans."""
    if isinstance(value, bool):
        return value
    return {"true": True, "yes": True, "false": False, "no": False}.get(str(value).lower())


def _opposite(spelling: str) -> str:
    return f"--{spelling[5:]}" if spelling.startswith("--no-") else f"--no-{spelling[2:]}"


def _items(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _text(value: object) -> str:
    return compact_json(value) if isinstance(value, dict | list | tuple) else str(value)


def _looks_like_a_flag(text: str) -> bool:
    # The numbers that argparse takes for values, before Python 3.13 made it take more of them.
    return text.startswith("-") and re.fullmatch(r"-\d+|-\d*\.\d+", text) is None


def _absent(spelling: str, table: FlagTable) -> Finding:
    """Why this release has no such flag, and what to write."""
    dashed = spelling.replace("_", "-")
    if dashed != spelling and dashed in table and not table[dashed].refused:
        return Finding(
            "flag.underscore",
            "error",
            f"{spelling} is written with underscores, which SGLang does not accept",
            f"Write {dashed}",
            SOURCE,
        )
    if table.history and (finding := table.history.absent(dashed, table.release)):
        return finding
    if dashed in table:
        return Finding(
            "flag.removed", "error", f"{spelling} is gone: {table[dashed].refused.rstrip('.')}", "Remove it", SOURCE
        )
    longer = sorted(name for name in table.shown if name.startswith(dashed) and len(dashed) > 2)
    if longer:
        return Finding(
            "flag.abbreviation",
            "error",
            f"{spelling} is only the beginning of a flag of this release",
            f"Write the name in full: {' or '.join(longer[:5])}",
            SOURCE,
        )
    nearest = difflib.get_close_matches(dashed, table.shown, n=3)
    return Finding(
        "flag.unknown",
        "error",
        f"{spelling} is not a flag of this release",
        f"Use an exact name; the nearest are {', '.join(nearest)}" if nearest else f"Remove {spelling}",
        SOURCE,
    )


def _deprecated(spelling: str, flag: Flag, table: FlagTable) -> Finding:
    replacement = table.history.replacement(flag.name, table.release) if table.history else ""
    return Finding(
        "flag.deprecated",
        "warning",
        f"{spelling}: {flag.deprecated.rstrip('.')}",
        f"Use {replacement} before a release drops {spelling}"
        if replacement
        else f"Do without {spelling} before a release drops it",
        SOURCE,
    )


def _check_value(spelling: str, value: object, flag: Flag, table: FlagTable) -> list[Finding]:
    if flag.kind == "switch":
        if _boolean(value) is not None:
            return []
        return [_type_fault(spelling, value, "is a switch", "Give true or false")]
    if flag.kind == "list":
        for item in _items(value):
            if isinstance(item, list | tuple) or item is None:
                return [_type_fault(spelling, item, "takes a flat list", "Give a list of single values")]
            if _looks_like_a_flag(_text(item)):
                return [_type_fault(spelling, item, "takes a list", "Remove the element that begins with a dash")]
        if isinstance(value, str) and value.startswith("["):
            return [_type_fault(spelling, value, "takes a list", "Write it as a YAML list, not as a string")]
        return [finding for item in _items(value) for finding in _check_text(spelling, item, flag, table)]
    if flag.bare and value is True:
        return []
    if isinstance(value, list | tuple) and flag.type in ("str", "int", "float"):
        return [_type_fault(spelling, value, "takes one value", "Give a single value; write a JSON list as a string")]
    return _check_text(spelling, value, flag, table)


def _check_text(spelling: str, value: object, flag: Flag, table: FlagTable) -> list[Finding]:
    """Judge one argument of a flag of kind ``value`` or ``list``."""
    text = _text(value)
    allowed = None if flag.choices is None else [str(choice) for choice in flag.choices]
    if allowed is not None and text in allowed and not isinstance(value, bool):
        return []
    if text in ("None", "True", "False") or "__omit_place_holder__" in text:
        return [
            _type_fault(spelling, value, "takes a value", "Leave the flag out or set it to null if it is not wanted")
        ]
    if not _converts(text, flag.type):
        return [_type_fault(spelling, value, f"takes {_TAKES[flag.type]}", "Correct the value")]
    if allowed is not None:
        if table.history and (finding := table.history.choice(spelling, text, table.release)):
            return [finding]
        nearest = difflib.get_close_matches(text, allowed, n=1)
        return [
            Finding(
                "flag.choice",
                "error",
                f"{spelling} does not accept {text!r}",
                f"Use {nearest[0]!r} or another of: {', '.join(allowed)}"
                if nearest
                else f"Use one of: {', '.join(allowed)}",
                SOURCE,
            )
        ]
    return []


def _type_fault(spelling: str, value: object, takes: str, remedy: str) -> Finding:
    return Finding("flag.type", "error", f"{spelling} {takes}, not {compact_json(value)}", remedy, SOURCE)


def _converts(text: str, kind: str) -> bool:
    """Whether SGLang's parser can convert the argument; other types than these are left to SGLang."""
    try:
        if kind == "int" or (kind == "human_readable_int" and not _SUFFIXED.fullmatch(text)):
            int(text)
        elif kind == "float":
            float(text)
        elif kind == "json":
            json.loads(text)
    except ValueError:
        return False
    return True
