# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The proof of a lock: it installs, imports, agrees with the table and compiles a FlashInfer module for Blackwell.

What the roles run on a node is run here, in a scratch folder beside the wheel cache; no GPU and no driver are needed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import nodes
from ansible_collections.inference.sglang.plugins.module_utils import (
    cubins,
    findings,
    flag_sources,
    installs,
    plan,
    releases,
    toolkits,
    wheels,
)
from ansible_collections.inference.sglang.plugins.module_utils.flags import FlagTable
from project import PYTHON_MINOR, ROOT, environment, require_packages

ARCHITECTURE = 120
ROLES = ROOT / "roles"


@dataclass(frozen=True)
class Proof:
    """What was measured, in seconds; ``megabytes`` on disk, a MB being 10⁶ bytes.

    ``install``  uv with the cache as it was, so downloads may be among it
    """

    release: str
    python: str
    megabytes: int
    install: float
    imported: float
    compiled: float


def prove(release: releases.Release, lock: str) -> Proof:
    """Install a lock of this Python's and put it to the test. Raises SystemExit with what is wrong."""
    prepare()
    with scratch() as folder:
        target = folder / "release"
        start = time.monotonic()
        installer().install_environment(lock, str(target), sys.executable)
        installed = time.monotonic()
        output = call([target / "bin" / "python", "-c", (ROLES / "sglang/files/import_release.py").read_text()])
        imported = time.monotonic()
        report = wheels.report(output)
        sources = flag_sources.read_sources(installs.site_packages(str(target), PYTHON_MINOR) / "sglang")
        parser = flag_sources.read_parser(report["flags"])
        shipped = ROLES / "sglang" / "files" / "flags" / f"{release.version}.json"
        # A release that is being added has no table yet: its own sources are to agree with its parser.
        table = FlagTable.from_json(shipped.read_text()) if shipped.exists() else sources
        wrong = [
            *installs.judge(report, lock, release.version, release.cuda),
            *installs.judge_flags(parser, table, "The parser"),
            *installs.judge_flags(sources, table, "The installed sources"),
            *releases.mixed_toolkit(wheels.pins(lock), release.cuda),
        ]
        if errors := findings.errors(wrong):
            raise SystemExit(findings.as_text(errors))
        seconds = compile_module(folder, target, release)
        return Proof(release.version, PYTHON_MINOR, megabytes(target), installed - start, imported - installed, seconds)


def compile_module(folder: Path, target: Path, release: releases.Release) -> float:
    """Seconds that FlashInfer's norm module took to compile with the role's toolkit."""
    lock = (ROLES / "cuda_toolkit" / "files" / "locks" / f"{release.cuda}.txt").read_text()
    toolkit = folder / "toolkit"
    installer().install_folder(lock, str(toolkit), sys.executable)
    toolkits.add_link_names(str(toolkit))
    cache = folder / "kernels"
    cache.mkdir()
    settings = plan.Settings(
        name="proof",
        user="nobody",
        bin_path="/opt/sglang/bin",
        release_path=str(target),
        cuda_home=str(toolkits.home(str(toolkit))),
        jit_cache=str(cache),
        cuda_arch=f"{ARCHITECTURE // 10}.{ARCHITECTURE % 10}f",
        model_path="/nonexistent",
        served_name="proof",
        host="127.0.0.1",
        port=1,
        flags={},
        environment={},
        start_timeout=1,
        stop_timeout=1,
        restart_limit=1,
    )
    start = time.monotonic()
    script = ROLES / "flashinfer" / "files" / "build_modules.py"
    output = call([target / "bin" / "python", script, "norm"], plan.environment(settings))
    seconds = time.monotonic() - start
    for library in wheels.report(output)["libraries"].values():
        if ARCHITECTURE not in (held := cubins.architectures(Path(library).read_bytes())):
            raise SystemExit(f"{Path(library).name} holds code for {sorted(held)}, not for {ARCHITECTURE}")
    return seconds


def compare(lock: str, repeats: int = 3) -> tuple[float, float]:
    """Median seconds of bare ``uv pip install`` and of the role's way, by turns, with every wheel in the cache."""
    prepare()
    bare, ours = [], []
    with scratch() as folder:
        path = folder / "lock.txt"
        path.write_text(lock)
        installer().install_environment(lock, str(folder / "first"), sys.executable)
        for turn in range(repeats):
            target = str(folder / f"bare-{turn}")
            start = time.monotonic()
            uv("venv", "--python", sys.executable, target)
            # Without what the wheels ask for: some locks have in its place what can be installed (docs/releases.md).
            options = ("--no-deps", "--require-hashes", "--no-build")
            uv("pip", "install", "--python", f"{target}/bin/python", *options, "-r", str(path))
            bare.append(time.monotonic() - start)
            start = time.monotonic()
            installer().install_environment(lock, str(folder / f"ours-{turn}"), sys.executable)
            ours.append(time.monotonic() - start)
    return statistics.median(bare), statistics.median(ours)


def forget(lock: str, following: str) -> None:
    """Drop from uv's cache what ``lock`` has and ``following`` has not, so that a series fits on a disk."""
    kept = wheels.pins(following)
    if names := [name for name, version in wheels.pins(lock).items() if kept.get(name) != version]:
        uv("cache", "clean", *names)


def table(proofs: Sequence[Proof]) -> str:
    """The proofs as a Markdown table."""
    lines = ["| release | Python | MB | install, s | import, s | norm for sm_120, s |"]
    lines.append("| ------- | ------ | -: | ---------: | --------: | -----------------: |")
    for proof in proofs:
        lines.append(
            f"| {proof.release} | {proof.python} | {proof.megabytes} | {proof.install:.0f} | {proof.imported:.0f} "
            f"| {proof.compiled:.0f} |"
        )
    return "\n".join(lines)


def prepare() -> None:
    """Install what the wheels need around them, as role uv does on a node."""
    require_packages("binutils", "g++", "gcc", "libnuma1")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        require_packages(f"python{PYTHON_MINOR}-dev")


def installer() -> wheels.Installer:
    """The role's installer, on the wheel cache that demo and tests share."""

    def run(argv: list[str], variables: Mapping[str, str]) -> tuple[int, str, str]:
        done = subprocess.run(argv, env=os.environ | variables, check=False, text=True, capture_output=True)
        return done.returncode, done.stdout, done.stderr

    return wheels.Installer(str(uv_program()), str(nodes.store() / "cache"), {}, run)


def uv(*arguments: str) -> None:
    """Run uv on the shared cache."""
    call([uv_program(), "--quiet", *arguments], {"UV_CACHE_DIR": str(nodes.store() / "cache"), "UV_SYSTEM_CERTS": "1"})


def uv_program() -> Path:
    """The pinned uv of the development environment."""
    return environment("development") / "bin" / "uv"


def call(argv: Sequence[str | Path], variables: Mapping[str, str] | None = None) -> str:
    """Standard output of a program. Raises SystemExit with its last words where it fails."""
    done = subprocess.run(argv, env=os.environ | (variables or {}), check=False, text=True, capture_output=True)
    if done.returncode != 0:
        words = " ".join(str(word) for word in argv[:2])
        raise SystemExit(f"`{words} …` failed with {done.returncode}:\n{(done.stdout + done.stderr).strip()[-3000:]}")
    return done.stdout


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder on one mount with the wheel cache, gone afterwards."""
    folder = nodes.store() / "scratch"
    folder.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def megabytes(folder: Path) -> int:
    """Size on disk, MB, of everything below a folder."""
    files = (Path(root, name) for root, _folders, names in os.walk(folder) for name in names)
    return round(sum(file.lstat().st_blocks for file in files) * 512 / 10**6)
