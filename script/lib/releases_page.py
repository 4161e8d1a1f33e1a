# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write docs/releases.md from the table of releases and the patch definitions. Needs PyYAML."""

from __future__ import annotations

from collections.abc import Iterable

import project
import yaml
from ansible_collections.inference.sglang.plugins.module_utils.releases import RELEASES, TOOLKITS, KnownFault

PAGE = project.ROOT / "docs" / "releases.md"
PATCHES = project.ROOT / "roles" / "sglang" / "files" / "patches"

INTRODUCTION = """\
# Releases

Written by `script/lock page` from `plugins/module_utils/releases.py` and `roles/sglang/files/patches`.
What an installation of each gave is in [lock-results.md](lock-results.md).

Every release of SGLang for CUDA 13 has a lock a Python: `roles/sglang/files/locks/<release>-py<minor>.txt`, exact
versions with the sha256 of their wheels, for x86_64 and glibc 2.34 or newer. The digest of a lock is a part of the
installed folder's name.
"""

ADDING = """\
## Adding a release

1. Give it a row in `plugins/module_utils/releases.py`, without digests.
2. `script/lock RELEASE` resolves its locks. They are written only when the one of the running Python installs, imports,
   agrees with the row, and compiles FlashInfer's norm module for sm_120. It prints the digests for the row.
3. `script/lock flags RELEASE` reads its flag table from the wheel.
4. For each patch in `roles/sglang/files/patches`, add the release's hashes, or `fixed_in`.
5. `script/lock page`, then `script/test units locks wheels`.
"""


def span(versions: Iterable[str]) -> str:
    """Releases in words: runs of the table as ``first … last``."""
    chosen = set(versions)
    runs: list[list[str]] = []
    following = False
    for version in RELEASES:
        if version in chosen:
            if following:
                runs[-1].append(version)
            else:
                runs.append([version])
        following = version in chosen
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} … {run[-1]}" for run in runs)


def page() -> str:
    """The page's text."""
    table = RELEASES.values()
    lines = [INTRODUCTION]
    lines.append("| release | PyTorch | FlashInfer | sglang-kernel | MB | locks: Python (digest) | patches |")
    lines.append("| ------- | ------- | ---------- | ------------- | -: | ---------------------- | ------- |")
    for release in table:
        locks = ", ".join(f"{python} ({digest})" for python, digest in release.locks.items())
        lines.append(
            f"| {release.version} | {release.torch} | {release.flashinfer} | {release.kernel} | {release.install_mb} "
            f"| {locks} | {', '.join(release.patches)} |"
        )
    lines += ["", "## What the locks change", ""]
    lines.append("Beyond SGLang's own pins, each for a fault that the releases have without it.")
    lines.append("")
    for cuda, pins in TOOLKITS.items():
        releases = span(it.version for it in table if it.cuda == cuda)
        lines.append(f"- {releases}: the wheels of CUDA are of {cuda} ({', '.join(pins)})")
    for name, what in (("constraints", "resolved with"), ("overrides", "in place of its own requirement")):
        for value in dict.fromkeys(value for release in table for value in getattr(release, name)):
            releases = span(it.version for it in table if value in getattr(it, name))
            lines.append(f"- {releases}: {what} `{value}`")
    for python in dict.fromkeys(python for release in table for python in release.excludes):
        left_out = {dist for release in table for dist in release.excludes.get(python, ())}
        releases = span(it.version for it in table if python in it.excludes)
        lines.append(f"- {releases} on Python {python}: without {', '.join(sorted(left_out))}, which has no wheel")
    lines += ["", "## Patches", ""]
    for path in sorted(PATCHES.glob("*.yml")):
        patch = yaml.safe_load(path.read_text(encoding="utf-8"))
        releases = span(it.version for it in table if patch["id"] in it.patches)
        upstream = " ".join(f"<{link}>" for link in patch.get("upstream", ()))
        lines.append(f"- `{patch['id']}` ({releases}): {patch['summary']}. {upstream}".rstrip())
    lines += ["", "## Known faults", ""]
    faults: dict[KnownFault, None] = dict.fromkeys(f for release in table for f in release.known_faults)
    for fault in faults:
        releases = span(it.version for it in table if fault in it.known_faults)
        lines.append(f"- `{fault.id}` ({releases}): {fault.seen}. {fault.remedy}. Source: {fault.source}")
    return "\n".join([*lines, "", ADDING])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(project.ROOT)} is written")
