# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Fetch SGLang's sources of every release that has a flag table, for the tests that read them.

usage: sources.py [FOLDER]    the releases lie in .state/sources, or below FOLDER, as <version>/sglang/

The wheels are those of the locks, by their hashes. They come from wherever pip is configured to look.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import project
from ansible_collections.inference.sglang.plugins.module_utils import releases

SOURCES = project.STATE / "sources"

# Releases before the oldest that is installed. Their flags are known, so that a finding can say what became of them.
OLDER = {
    "0.5.10": "ac8855a5d57dac8831fee526bca5212f1ae451f378e2ab08b3baecbc4deb4076",
    "0.5.10.post1": "a854a68b11caf6b4b55c241a44378a7cdede7ede325db85c955f131506703bc6",
}
KEPT = r"sglang/.*\.(cuh|py)"
"""What is unpacked of a wheel: what the flag tables are read from, and what patches change."""

VERSIONS = (*OLDER, *releases.RELEASES)
PYTHON = "3.11"


def fetch(folder: Path = SOURCES) -> Path:
    """Have the sources of every release below ``folder``, one line a release; what is there is kept.

    Raises SystemExit where a wheel cannot be had, or a lock does not hold SGLang.
    """
    for version in VERSIONS:
        stamp = folder / version / "kept"
        here = stamp.is_file() and stamp.read_text() == KEPT
        if not here:
            shutil.rmtree(folder / version, ignore_errors=True)
            _unpack(version, folder)
        print(f"{version}: {'was there' if here else 'fetched'}", flush=True)
    return folder


def _unpack(version: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        wheel, target = _download(version, Path(temporary)), Path(temporary) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target, [name for name in archive.namelist() if re.fullmatch(KEPT, name)])
        (target / "kept").write_text(KEPT)
        shutil.move(target, folder / version)


def _download(version: str, folder: Path) -> Path:
    requirement = folder / "requirement.txt"
    requirement.write_text(f"sglang=={version} {' '.join(f'--hash=sha256:{digest}' for digest in _hashes(version))}\n")
    venv = project.environment("development")
    # The platform of the locks, whatever this machine's is.
    machine, glibc = releases.PLATFORM.split("-manylinux_")
    wanted = ["--python-version", PYTHON, "--platform", f"manylinux_{glibc}_{machine}", "--platform", "any"]
    only = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--dest", str(folder)]
    pip = [str(venv / "bin" / "python"), "-m", "pip", "-qq", "--disable-pip-version-check", "download"]
    command = [*pip, *only, *wanted, "--requirement", str(requirement)]
    if subprocess.run(command, env=project.clean_environment(venv), check=False).returncode != 0:
        raise SystemExit(f"pip cannot have the wheel of SGLang {version}: see above")
    (wheel,) = folder.glob("*.whl")
    return wheel


def _hashes(version: str) -> list[str]:
    if version in OLDER:
        return [OLDER[version]]
    lock = project.ROOT / "roles" / "sglang" / "files" / "locks" / f"{version}-py{PYTHON}.txt"
    text = lock.read_text() if lock.exists() else ""
    entry = re.search(r"^sglang==(\S+)((?: \\\n +--hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE)
    if entry is None or entry[1] != version:
        raise SystemExit(
            f"{lock.relative_to(project.ROOT)} does not hold SGLang {version}: make it again with script/lock"
        )
    return re.findall(r"[0-9a-f]{64}", entry[2])


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    fetch(*map(Path, sys.argv[1:]))
