# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What became of flags between releases: since when one exists or is gone, and what takes its place.

Read off the releases' tables. What they cannot say is in three small tables here, each row with its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ansible_collections.inference.sglang.plugins.module_utils import flags
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, Severity
from ansible_collections.inference.sglang.plugins.module_utils.flags import Flag, FlagTable

# Flags that went without a word of SGLang's: what does their work, and where that is known from.
REPLACEMENTS: dict[str, tuple[str, str]] = {
    "--enable-deepep-waterfill": ("--enable-waterfill", "sglang/srt/server_args.py of 0.5.15.post1 and 0.5.16"),
    "--enable-piecewise-cuda-graph": ("--enforce-piecewise-cuda-graph", "sglang/srt/server_args.py of 0.5.13.post1"),
    "--multi-item-scoring-delimiter": ("--enable-mis", "sglang/srt/server_args.py of 0.5.10 and 0.5.11"),
    "--optimistic-prefill-retries": (
        "--optimistic-prefill-attempts",
        "sglang/srt/server_args.py of 0.5.15.post1 and 0.5.16",
    ),
}

# Flags that took the place of several: what an earlier release wants.
FORMER: dict[str, tuple[str, str]] = {
    "--attn-dp-size": ("--dp-size with --enable-dp-attention", "sglang/srt/arg_groups/parallel_hook.py of 0.5.22"),
}

# Choices that went: flag and choice -> the choice that does their work.
CHOICE_REPLACEMENTS: dict[tuple[str, str], tuple[str, str]] = {
    ("--kv-cache-dtype", "fp4_e2m1"): ("fp4_mx_block16", "sglang/srt/mem_cache/kv_cache_dtype.py of 0.5.20"),
}


@dataclass(frozen=True)
class Meaning:
    """A flag that says another thing since a release, where another flag is given beside it."""

    flag: str
    since: str
    beside: str
    severity: Severity
    seen: str
    remedy: str
    source: str


MEANINGS = (
    Meaning(
        flag="--dp-size",
        since="0.5.22",
        beside="--enable-dp-attention",
        severity="warning",
        seen="--dp-size counts replicas of the model since 0.5.22; only beside --enable-dp-attention, which SGLang "
        "will drop, it still counts attention groups",
        remedy="Write --attn-dp-size in the place of the two",
        source="sglang/srt/arg_groups/parallel_hook.py of 0.5.22",
    ),
    Meaning(
        flag="--dp-size",
        since="0.5.22",
        beside="--attn-dp-size",
        severity="error",
        seen="--dp-size counts replicas of the model since 0.5.22, and SGLang refuses more than one of them beside "
        "more than one attention group",
        remedy="Keep --attn-dp-size alone",
        source="sglang/srt/arg_groups/parallel_hook.py of 0.5.22",
    ),
)

_NAME = re.compile(r"--[a-z0-9][a-z0-9-]*")
_TABLES = "roles/sglang/files/flags"


def version_key(version: str) -> list[int]:
    """What orders releases by age (``0.5.12`` < ``0.5.12.post1`` < ``0.5.13``); the table has no release candidates."""
    return [int(number) for number in re.findall(r"\d+", version)]


def _matters(value: object) -> bool:
    """Whether a size is more than one, or a switch is on."""
    return value is not None and str(value).lower() not in ("1", "false", "no")


class History(Mapping[str, FlagTable]):
    """The flag tables of all releases by version, the oldest first; each of them knows its release and this history."""

    def __init__(self, tables: Mapping[str, FlagTable]) -> None:
        self._tables = {
            version: FlagTable(tables[version].flags, version, self) for version in sorted(tables, key=version_key)
        }
        self._versions = list(self._tables)

    def __getitem__(self, version: str) -> FlagTable:
        return self._tables[version]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def absent(self, spelling: str, release: str) -> Finding | None:
        """Why a release does not take a flag that another one takes; None where none does."""
        before, after = self._around(release, [version for version in self if self._takes(version, spelling)])
        if before:
            return self._removed(spelling, before[-1], release)
        return self._later(spelling, after[0], release) if after else None

    def choice(self, spelling: str, text: str, release: str) -> Finding | None:
        """Why a release does not accept a value of a flag that another one accepts; None where none does."""
        known = [version for version in self if self._choices(version, spelling)]
        accepting = [version for version in known if text in self._choices(version, spelling)]
        before, after = self._around(release, accepting)
        if before:
            gone = known[known.index(before[-1]) + 1]
            name = self[release][spelling].name
            instead, source = CHOICE_REPLACEMENTS.get((name, text), ("", _TABLES))
            if instead in self._choices(release, spelling):
                remedy = f"Use {instead!r}"
            else:
                remedy = f"Use one of: {', '.join(self._choices(release, spelling))}"
            seen = f"{spelling} does not accept {text!r} in SGLang {release}: that is gone since {gone}"
            return Finding("flag.choice_removed", "error", seen, remedy, source)
        if after:
            seen = f"{spelling} accepts {text!r} from SGLang {after[0]} on, and this is {release}"
            remedy = f"Use {after[0]} or a later release, or one of: {', '.join(self._choices(release, spelling))}"
            return Finding("flag.choice_later", "error", seen, remedy, _TABLES)
        return None

    def meanings(self, given: Mapping[str, object], release: str) -> list[Finding]:
        """Flags (name to value) that say another thing in this release than in earlier ones."""
        return [
            Finding("flag.meaning", meaning.severity, meaning.seen, meaning.remedy, meaning.source)
            for meaning in MEANINGS
            if version_key(release) >= version_key(meaning.since)
            and all(_matters(given.get(name)) for name in (meaning.flag, meaning.beside))
        ]

    def replacement(self, spelling: str, release: str) -> str:
        """What takes the place of a flag in a release, as SGLang writes it (``--x``, ``--x=y``, ``--x <n>``).

        Followed through as many releases as it takes; empty where the release has nothing for it.
        """
        table, found, passed = self[release], "", {spelling}
        while successor := self._successor(spelling):
            match = re.match(rf"({_NAME.pattern})(?:=(\S+))?", successor)
            flag = table.get(match[1]) if match else None
            if match is None or match[1] in passed:
                break
            if flag and not flag.refused:
                if match[2] and not flags.accepts(flag, match[2]):
                    return ""
                found = successor
            spelling = match[1]
            passed.add(spelling)
        return found

    def _around(self, release: str, versions: list[str]) -> tuple[list[str], list[str]]:
        """Those of the versions that come before the release, and those that come after it."""
        here = self._versions.index(release)
        before = [version for version in versions if self._versions.index(version) < here]
        return before, [version for version in versions if self._versions.index(version) > here]

    def _takes(self, version: str, spelling: str) -> bool:
        flag = self[version].get(spelling)
        return flag is not None and not flag.refused

    def _choices(self, version: str, spelling: str) -> list[str]:
        flag = self[version].get(spelling)
        return [str(choice) for choice in flag.choices or ()] if flag else []

    def _said_last(self, spelling: str) -> Flag | None:
        """The flag in the last release that knows it, refused or not."""
        return next((table[spelling] for table in reversed(self._tables.values()) if spelling in table), None)

    def _successor(self, spelling: str) -> str:
        flag = self._said_last(spelling)
        return flag.replacement if flag and flag.replacement else REPLACEMENTS.get(spelling, ("",))[0]

    def _removed(self, spelling: str, last: str, release: str) -> Finding:
        gone = self._versions[self._versions.index(last) + 1]
        deprecated = ""
        for version in reversed(self._versions[: self._versions.index(gone)]):
            if spelling not in self[version] or not self[version][spelling].deprecated:
                break
            deprecated = version
        seen = f"{spelling} is gone since SGLang {gone}, and this is {release}"
        if deprecated:
            already = " already" if deprecated == self._versions[0] else ""
            seen += f"; it was deprecated in {deprecated}{already}"
        source = f"sglang/srt/server_args.py of {last}" if deprecated else _TABLES
        if replacement := self.replacement(spelling, release):
            if spelling in REPLACEMENTS:
                source = REPLACEMENTS[spelling][1]
            return Finding("flag.removed", "error", seen, f"Use {replacement}", source)
        flag = self._said_last(spelling)
        # A replacement that this release lacks as well is no help, in whatever words.
        words = (flag.refused or flag.deprecated).rstrip(".") if flag and not flag.replacement else ""
        if words and all(name == spelling or self._takes(release, name) for name in _NAME.findall(words)):
            return Finding("flag.removed", "error", seen, f"Remove it. SGLang said: {words}", source)
        return Finding("flag.removed", "error", seen, "Remove it: no other flag takes its place", source)

    def _later(self, spelling: str, first: str, release: str) -> Finding:
        flag = self[first][spelling]
        former = [
            old
            for old in self[release].shown
            if any(self._successor(old) == name for name in flag.spellings) and not self[release][old].deprecated
        ]
        source = _TABLES
        if flag.name in FORMER:
            former, source = [FORMER[flag.name][0]], FORMER[flag.name][1]
        here = f"Use {' or '.join(former)} in this release, or " if former else "Use "
        seen = f"{spelling} exists from SGLang {first} on, and this is {release}"
        return Finding("flag.later", "error", seen, f"{here}{first} or a later release", source)
