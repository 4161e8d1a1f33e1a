"""Write a lock: every wheel of a release, of a CUDA toolkit or of uv, with exact version and sha256.

usage: script/lock sglang RELEASE PYTHON | script/lock cuda VERSION | script/lock uv
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from project import ROOT, environment

sys.path.insert(0, str(ROOT / ".collections"))

from ansible_collections.inference.sglang.plugins.module_utils import releases


def resolve(requirements: list[str], constraints: list[str], python: str, excludes: Sequence[str] = ()) -> str:
    """The lock's text: one pip requirement a wheel set, with the hashes of the wheels that fit the platform.

    ``excludes``  distributions that are left out, whoever requires them
    """
    uv = environment("development") / "bin" / "uv"
    with tempfile.TemporaryDirectory() as folder:
        names = ("wanted.in", "limits.in", "excluded.in", "pylock.toml")
        wanted, limits, excluded, result = (Path(folder) / name for name in names)
        wanted.write_text("\n".join(requirements) + "\n")
        limits.write_text("\n".join(constraints) + "\n")
        excluded.write_text("\n".join(excludes) + "\n")
        options: list[str | Path] = ["--constraints", limits, "--excludes", excluded, "--python-version", python]
        options += ["--python-platform", releases.PLATFORM, "--only-binary", ":all:"]
        options += ["--format", "pylock.toml", "--output-file", result]
        subprocess.run([uv, "pip", "compile", "--quiet", wanted, *options], check=True)
        packages = tomllib.loads(result.read_text())["packages"]
    lines = []
    for package in sorted(packages, key=lambda package: package["name"]):
        hashes = sorted({wheel["hashes"]["sha256"] for wheel in package["wheels"]})
        lines.append(
            " \\\n".join([f"{package['name']}=={package['version']}"] + [f"    --hash=sha256:{h}" for h in hashes])
        )
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    """Resolve what the command line names and write it where its role finds it."""
    match arguments:
        case ["sglang", version, python]:
            release = releases.RELEASES[version]
            toolkit = [pin for pin in releases.TOOLKITS[release.cuda] if not pin.startswith("nvidia-cublas")]
            excludes = release.excludes.get(python, ())
            text = resolve([f"sglang=={version}"], [*release.constraints, *toolkit], python, excludes)
            path = ROOT / "roles/sglang/files/locks" / f"{version}-py{python}.txt"
        case ["cuda", version]:
            text = resolve(list(releases.TOOLKITS[version]), [], "3.11")
            path = ROOT / "roles/cuda_toolkit/files/locks" / f"{version}.txt"
        case ["uv"]:
            text = resolve([f"uv=={releases.UV}"], [], "3.11")
            path = ROOT / "roles/uv/files/uv.txt"
        case _:
            raise SystemExit(__doc__)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"{path.relative_to(ROOT)}: {text.count('==')} distributions")


if __name__ == "__main__":
    main(sys.argv[1:])
