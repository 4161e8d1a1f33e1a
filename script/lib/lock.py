# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write locks: every wheel of a release, of a CUDA toolkit or of uv, with exact version and sha256.

usage: script/lock RELEASE [PYTHON] | script/lock flags [RELEASE...] | script/lock page
       script/lock cuda VERSION | script/lock uv

A release needs a row in plugins/module_utils/releases.py first, with its constraints; it may lack the digests.
Its locks (of all the row's Pythons, or of one) are written only when that of this Python installs, imports and
compiles kernels, and the others hold the same versions. ``flags`` reads flag tables from the releases' wheels,
``page`` writes docs/releases.md.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

import make_flag_table
import proof
from ansible_collections.inference.sglang.plugins.module_utils import findings, releases, wheels
from project import PYTHON_MINOR, ROOT, environment, run

LOCKS = ROOT / "roles" / "sglang" / "files" / "locks"


def resolve(
    requirements: Sequence[str],
    python: str,
    *,
    constraints: Sequence[str] = (),
    overrides: Sequence[str] = (),
    excludes: Sequence[str] = (),
    alone: bool = False,
) -> str:
    """The lock's text: one pip requirement a wheel set, with the hashes of the wheels that fit the platform.

    ``constraints``  versions to keep to, for distributions that something requires
    ``overrides``    requirements that replace those of any distribution
    ``excludes``     distributions that are left out, whoever requires them
    ``alone``        without what the requirements require themselves
    """
    with tempfile.TemporaryDirectory() as folder:
        options: list[str | Path] = ["--no-deps"] if alone else []
        lists = {"": requirements, "--constraints": constraints, "--overrides": overrides, "--excludes": excludes}
        for option, lines in lists.items():
            path = Path(folder) / f"{option.strip('-') or 'wanted'}.in"
            path.write_text("".join(f"{line}\n" for line in lines))
            options += [option, path] if option else [path]
        result = Path(folder) / "pylock.toml"
        options += ["--python-version", python, "--python-platform", releases.PLATFORM, "--only-binary", ":all:"]
        options += ["--format", "pylock.toml", "--output-file", result]
        uv = environment("development") / "bin" / "uv"
        if subprocess.run([uv, "pip", "compile", "--quiet", *options], check=False).returncode != 0:
            raise SystemExit(f"There is no set of wheels for {' '.join(requirements)} on Python {python}: see above")
        packages = tomllib.loads(result.read_text())["packages"]
    lines = []
    for package in sorted(packages, key=lambda package: package["name"]):
        hashes = sorted({wheel["hashes"]["sha256"] for wheel in package["wheels"]})
        lines.append(
            " \\\n".join([f"{package['name']}=={package['version']}"] + [f"    --hash=sha256:{h}" for h in hashes])
        )
    return "\n".join(lines) + "\n"


def resolve_release(release: releases.Release, python: str, like: str = "") -> str:
    """The lock of a release for one Python; ``like`` is the lock whose versions it has to keep to."""
    toolkit = [pin for pin in releases.TOOLKITS[release.cuda] if not pin.startswith("nvidia-cublas")]
    constraints = [f"{name}=={version}" for name, version in wheels.pins(like).items()] if like else []
    return resolve(
        [f"sglang=={release.version}"],
        python,
        constraints=constraints or [*release.constraints, *toolkit],
        overrides=release.overrides,
        excludes=release.excludes.get(python, ()),
    )


def check_index(version: str, python: str) -> None:
    """Ask the package index for every wheel of a lock. Raises SystemExit where it no longer serves one of them."""
    locked = (LOCKS / f"{version}-py{python}.txt").read_text()
    found = resolve([f"{name}=={pin}" for name, pin in wheels.pins(locked).items()], python, alone=True)
    served = {line.rstrip(" \\") for line in found.splitlines()}
    gone = [line for line in locked.splitlines() if line.rstrip(" \\") not in served]
    if gone:
        raise SystemExit(f"The index lacks wheels of the lock of {version} for Python {python}: {' '.join(gone)}")


def lock_release(version: str, pythons: Sequence[str]) -> None:
    """Resolve, prove, and only then write. Raises SystemExit where that goes wrong; nothing is written then."""
    if version not in releases.RELEASES:
        raise SystemExit(f"Give SGLang {version} a row in plugins/module_utils/releases.py first, with its constraints")
    release = releases.RELEASES[version]
    proven = LOCKS / f"{version}-py{PYTHON_MINOR}.txt"
    if PYTHON_MINOR in pythons:
        first = resolve_release(release, PYTHON_MINOR)
        if wrong := releases.mixed_toolkit(wheels.pins(first), release.cuda):
            raise SystemExit(findings.as_text(wrong))
        result = proof.prove(release, first)
        print(proof.table([result]), flush=True)
    elif proven.exists():
        first = proven.read_text()
    else:
        raise SystemExit(f"Lock it for Python {PYTHON_MINOR} first: that one is proven by an installation")
    locks = {PYTHON_MINOR: first}
    for python in pythons:
        locks.setdefault(python, resolve_release(release, python, like=first))
    for python, text in locks.items():
        write(LOCKS / f"{version}-py{python}.txt", text)
    digests = {python: wheels.digest(text) for python, text in locks.items()}
    if digests != {python: release.locks.get(python) for python in digests}:
        entries = ", ".join(f'"{python}": "{digest}"' for python, digest in sorted(digests.items()))
        print(f"Write into the row of {version}: locks={{{entries}}}", flush=True)


def write(path: Path, text: str) -> None:
    """Put a lock where its role finds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"{path.relative_to(ROOT)}: {text.count('==')} distributions", flush=True)


def main(arguments: list[str]) -> None:
    """Write what the command line names."""
    match arguments:
        case ["cuda", version] if version in releases.TOOLKITS:
            text = resolve(releases.TOOLKITS[version], "3.11")
            write(ROOT / "roles" / "cuda_toolkit" / "files" / "locks" / f"{version}.txt", text)
        case ["flags", *versions]:
            make_flag_table.main(versions)
        case ["page"]:
            run([environment("development") / "bin" / "python", ROOT / "script" / "lib" / "releases_page.py"])
        case ["uv"]:
            write(ROOT / "roles" / "uv" / "files" / "uv.txt", resolve([f"uv=={releases.UV}"], "3.11"))
        case [version] if version[:1].isdigit():
            lock_release(version, releases.RELEASES[version].pythons if version in releases.RELEASES else ())
        case [version, python] if version[:1].isdigit():
            lock_release(version, [python])
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
