# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The test series: ``script/test`` runs it, ``script/test NAME...`` some parts, ``script/test full`` the long ones too.

A part is one function. It returns when all is well and raises otherwise; what the tools print is its report.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import lock
import nodes
import proof
import sources
from ansible_collections.inference.sglang.plugins.module_utils import releases
from project import PYTHON_MINOR, ROOT, STATE, clean_environment, environment, require_packages, run

COLLECTION = "inference.sglang"
PLUGINS = "ansible_collections.inference.sglang.plugins"
TYPED = ("module_utils", "plugin_utils", "filter", "action")
MOST_TASKS = 45
# An installation through the role may take this much of a bare `uv pip install` of the same lock.
MOST_OF_BARE = 1.1
FULL_RESULT = ROOT / "docs" / "test-results.md"
LOCK_RESULT = ROOT / "docs" / "lock-results.md"


@dataclass(frozen=True)
class Part:
    """One named part of the series; ``long`` ones run only when named, or in the full series."""

    name: str
    description: str
    function: Callable[[], None]
    long: bool


@dataclass(frozen=True)
class Result:
    """How one part went, and the seconds that it took."""

    name: str
    seconds: float
    passed: bool


PARTS: dict[str, Part] = {}


def part(description: str, *, long: bool = False) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Enter a function into the series, under its own name. The series runs in the order of this file."""

    def enter(function: Callable[[], None]) -> Callable[[], None]:
        PARTS[function.__name__] = Part(function.__name__, description, function, long)
        return function

    return enter


# Parts that need no node.


@part("ruff, mypy --strict and shellcheck")
def style() -> None:
    """Formatting, lint and types of the Python files, and lint of the bash scripts."""
    require_packages("shellcheck")
    tool("ruff", "check")
    tool("ruff", "format", "--check")
    tool("mypy", *(word for name in TYPED for word in ("-p", f"{PLUGINS}.{name}")))
    tool("mypy", "script/lib", env={"MYPYPATH": "script/lib:.collections"})
    run(["shellcheck", *bash_scripts()])


@part("unit tests of the core, the plugins and the roles' interfaces")
def units() -> None:
    """All of tests/unit but what the part ``hygiene`` runs, tests/hub, and what they cover of the core."""
    # Some compile a library, some sign with gpg, and some ask systemd how it reads a unit.
    require_packages("binutils", "gcc", "gpg", "gpg-agent", "libc6-dev", "systemd")
    asked = {"HUB_PYTHON": str(environment("development") / "bin" / "python")}
    paths = ("tests/unit", "tests/hub", "--ignore=tests/unit/test_hygiene.py")
    measured = ("--numprocesses=auto", "--dist=worksteal", "--cov", "--cov-report=")
    tool("pytest", "--tb=short", *measured, *paths, env=asked)
    tool("coverage", "report", "--skip-covered")


@part("each rule of the core by a unit test that fails without it")
def rules_proof() -> None:
    """Every rule in turn is made silent; a room's tests must notice."""
    tool("python", "script/lib/rules_proof.py")


@part("every lock against table and index, and one release by an installation, in turn")
def locks() -> None:
    """Each hour another release that has a lock for this Python is installed, imported and compiles."""
    check_locks()
    provable = [release for release in releases.RELEASES.values() if PYTHON_MINOR in release.locks]
    chosen = provable[int(time.time() // 3600) % len(provable)]
    text = (lock.LOCKS / f"{chosen.version}-py{PYTHON_MINOR}.txt").read_text()
    print(proof.table([proof.prove(chosen, text)]), flush=True)
    bare, ours = proof.compare(text)
    print(
        f"With a filled cache: uv pip install {bare:.2f} s, the role's way {ours:.2f} s ({ours / bare:.2f} x)",
        flush=True,
    )
    if ours > MOST_OF_BARE * bare:
        raise SystemExit(f"The role's way may take {MOST_OF_BARE} x uv pip install")


def all_locks() -> None:
    """As part ``locks``, with every release by an installation. The result is kept in the repository."""
    chosen = [release for release in releases.RELEASES.values() if PYTHON_MINOR in release.locks]
    texts = [(lock.LOCKS / f"{release.version}-py{PYTHON_MINOR}.txt").read_text() for release in chosen]
    proofs = []
    for release, text, following in zip(chosen, texts, [*texts[1:], ""], strict=True):
        proofs.append(proof.prove(release, text))
        print(proof.table(proofs[-1:]), flush=True)
        if following:
            proof.forget(text, following)
    LOCK_RESULT.write_text(
        "# What every lock gives when it is installed\n\n"
        f"Written by `script/test locks --all` on {today()}: {setting()}.\n"
        "Install: uv, with the wheels that the release before it left in the cache. MB: on disk, 10⁶ bytes.\n"
        f"All imports, flag tables and kernels were right.\n\n{proof.table(proofs)}\n"
    )
    check_locks()  # the table's sizes are to be those of this result


def check_locks() -> None:
    """Every lock against the table and the package index, without installing anything."""
    tool("pytest", "--tb=short", "tests/unit/test_releases.py")
    locked = [(release.version, python) for release in releases.RELEASES.values() for python in release.locks]
    with ThreadPoolExecutor(8) as pool:  # each waits for the index, most of the time
        list(pool.map(lock.check_index, *zip(*locked, strict=True)))
    print(f"the index serves every wheel of {len(locked)} locks", flush=True)


@part("flag tables and patches against the published sources of all releases")
def wheels() -> None:
    """All of tests/wheels. The wheels are fetched once, by the hashes of the locks."""
    require_packages("g++")  # the probe of activation-gcc12 compiles
    tool("pytest", "--tb=short", "tests/wheels", env={"SGLANG_SOURCES": str(sources.fetch())})


@part("what a repository must not hold, and what it must")
def hygiene() -> None:
    """Host names, paths, leftovers, the roles' files and the version."""
    tool("pytest", "--tb=short", "tests/unit/test_hygiene.py")


@part("ansible-lint, production profile, yamllint within")
def lint() -> None:
    """The settings are in .ansible-lint."""
    tool("ansible-lint", "--strict")


@part("documentation of the collection, its plugins and roles, and the changelog")
def docs() -> None:
    """Documentation that antsibull-docs accepts and ansible-doc shows for every plugin and role."""
    tool("antsibull-docs", "lint-collection-docs", "--plugin-docs", "--validate-collection-refs", "self", ".")
    tool("antsibull-changelog", "lint")
    # antsibull-docs fails on a plugin without documentation, and is silent about a role without.
    shown = json.loads(tool("ansible-doc", "--metadata-dump", COLLECTION, capture=True))["all"]
    roles = {f"{COLLECTION}.{path.name}" for path in (ROOT / "roles").iterdir() if path.is_dir()}
    if silent := sorted(roles - shown["role"].keys()):
        raise SystemExit(f"ansible-doc shows nothing of {', '.join(silent)}")
    for kind in ("module", "filter", "role"):
        print(f"{kind}s: {', '.join(shown[kind])}", flush=True)


@part("ansible-test sanity on the built and installed collection")
def sanity() -> None:
    """What ships, checked where ansible-test accepts it: below a real ansible_collections folder."""
    require_packages("shellcheck")
    # Not below the checkout, where ansible-test would leave out what git ignores: all.
    with tempfile.TemporaryDirectory() as folder:
        # With the checkout on its path, ansible-galaxy would find the collection installed already.
        env = {"ANSIBLE_COLLECTIONS_PATH": folder}
        tool("ansible-galaxy", "collection", "install", "--offline", "--collections-path", folder, tarball(), env=env)
        installed = Path(folder).joinpath("ansible_collections", *COLLECTION.split("."))
        arguments = ["sanity", "--python", PYTHON_MINOR, "--junit"]
        tool("ansible-test", *arguments, cwd=installed, env={"HOME": str(sanity_home())})
        # ansible-test passes where it finds nothing to test.
        reports = list(installed.glob("tests/output/junit/*.xml"))
    if not reports:
        raise SystemExit("ansible-test ran no test")
    print(f"{len(reports)} sanity tests passed", flush=True)


@part("galaxy-importer on the built collection")
def importer() -> None:
    """A server would take the collection, without a warning."""
    with tempfile.TemporaryDirectory() as folder:  # it leaves importer_result.json in its working directory
        log = tool("python", "-m", "galaxy_importer.main", tarball(), cwd=Path(folder), capture=True)
    print(log, end="", flush=True)
    complaints = re.findall(r"^(?:WARNING|ERROR|CRITICAL): .*", log, re.MULTILINE)
    if complaints:
        raise SystemExit(f"galaxy-importer complains in {len(complaints)} lines, the first: {complaints[0]}")


# Parts on real nodes.


def scenario(name: str, suite: str = "bookworm") -> None:
    """Run a molecule scenario on nodes of a Debian suite; molecule destroys them whatever happens."""
    require_packages(*nodes.PACKAGES)
    tool("molecule", "test", "--scenario-name", name, env={"NODE_SUITE": suite})
    nothing_left("inference-sglang-molecule")


@part("script/demo from nothing to the answer, run again, and stopped")
def demo() -> None:
    """The newcomer's way. The second run of site.yml must change nothing, with few tasks."""
    run(["script/demo"])
    second = tool("ansible-playbook", "site.yml", capture=True)
    (recap,) = re.findall(r"^demo .*ok=(\d+) +changed=(\d+) ", second, re.MULTILINE)
    print(f"second run: {recap[0]} tasks, {recap[1]} changed", flush=True)
    if recap[1] != "0" or int(recap[0]) > MOST_TASKS:
        raise SystemExit(f"A second run changes nothing and needs {MOST_TASKS} tasks at most:\n{second}")
    # What the node installed lies on this machine, too.
    (manifest,) = nodes.store().glob("nodes/demo/releases/*/manifest.json")
    tool("pytest", "--tb=short", "tests/gloo", env={"RELEASE": str(manifest.parent)})
    run(["script/demo", "stop"])
    nothing_left("inference-sglang-demo")


@part("molecule test: the whole chain on a bare Debian 12 node")
def molecule() -> None:
    """Check mode without a network, converge, idempotence, verify, a crash and a stop."""
    scenario("default")


@part("the patch on the real server: dead without it, answering with it")
def layer_probe() -> None:
    """The Triton backend's layer probe with four pipeline stages."""
    scenario("layer_probe")


@part("bad input on a real node gets its finding, and nothing is changed")
def bad_input() -> None:
    """Every case of molecule/bad_input/converge.yml."""
    scenario("bad_input")


@part("a release after another on one node, one that dies and is taken back, and the way back by hand")
def upgrade() -> None:
    """0.5.12.post1, 0.5.23, a broken one, rollback.yml twice, and old releases removed."""
    scenario("upgrade")


@part("NVIDIA's packages: a toolkit from a signed repository, what is refused, and the way back")
def packages() -> None:
    """Method apt of role cuda_toolkit on a node with a repository of its own and no network."""
    scenario("packages")


@part("the whole chain on a bare Debian 13 node")
def debian13() -> None:
    """As part ``molecule``, with Python 3.13 and systemd 257."""
    scenario("default", suite="trixie")


@part("a converge that is killed, again and again, ends like an undisturbed one", long=True)
def interrupted() -> None:
    """Kill Ansible on the controller after more and more seconds; what it began on the node may go on."""
    inventory, venv = ROOT / "molecule" / "inventory", environment("development")
    nodes.create(venv, inventory)
    argv = [str(venv / "bin" / "ansible-playbook"), "--inventory", str(inventory), str(ROOT / "site.yml")]
    try:
        for seconds in (8, 20, 35, 55, 80):
            process = subprocess.Popen(
                argv, cwd=ROOT, env=clean_environment(venv), stdout=subprocess.DEVNULL, start_new_session=True
            )
            time.sleep(seconds)
            os.killpg(process.pid, signal.SIGKILL)
            print(f"killed after {seconds} s, exit status {process.wait()}", flush=True)
        run(argv, env=clean_environment(venv))
        second = run(argv, env=clean_environment(venv), capture=True)
        if not re.search(r"^node1 .*changed=0 .*failed=0 ", second, re.MULTILINE):
            raise SystemExit(f"The run after the last changes something:\n{second}")
        nodes.playbook(venv, inventory, "playbooks/verify.yml")
    finally:
        nodes.destroy(venv, inventory)
    nothing_left("inference-sglang-molecule")


@part("NVIDIA's aiconfigurator, asked and understood", long=True)
def estimator() -> None:
    """The adapter against the real program, in the environment that the README names."""
    command = environment("aiconfigurator") / "bin" / "aiconfigurator"
    tool("pytest", "--tb=short", "tests/estimator", env={"AICONFIGURATOR": str(command)})


def nothing_left(network: str) -> None:
    """Raise SystemExit when a node or its network is still there."""
    listed = run(["podman", "ps", "--all", "--format", "{{.Names}}"], capture=True)
    listed += run(["podman", "network", "ls", "--format", "{{.Name}}"], capture=True)
    if left := [name for name in listed.split() if name.startswith(network)]:
        raise SystemExit(f"Left behind: {', '.join(left)}")


# What the parts share.


def tool(
    name: str, *arguments: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None, capture: bool = False
) -> str:
    """Run a program of the development environment; ``project.run`` says the rest."""
    venv = environment("development")
    return run([venv / "bin" / name, *arguments], cwd=cwd, env=clean_environment(venv) | (env or {}), capture=capture)


@functools.cache
def tarball() -> Path:
    """The collection as it ships, built from the working tree once a run."""
    folder = STATE / "build"
    shutil.rmtree(folder, ignore_errors=True)
    tool("ansible-galaxy", "collection", "build", "--output-path", folder)
    (built,) = folder.glob("*.tar.gz")
    return built


def bash_scripts() -> list[Path]:
    """The bash scripts of the working tree, known by their first line."""
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture=True).split("\0")
    files = (ROOT / name for name in listed if name)
    return [file for file in files if file.is_file() and file.read_bytes().startswith(b"#!/usr/bin/env bash\n")]


def sanity_home() -> Path:
    """A home for ansible-test: it keeps its environments there, and looks there for its get-pip.py.

    Its path is short, as a script's first line, which names an interpreter below it, may not exceed 127 bytes.
    """
    home = STATE / "home"
    cache = home / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    # ansible-test pins the pip of its environments in its own code, and nowhere else.
    pinned = (
        "from types import SimpleNamespace; from ansible_test._internal.python_requirements import get_venv_packages; "
        f"print(get_venv_packages(SimpleNamespace(version='{PYTHON_MINOR}'))['pip'])"
    )
    version = tool("python", "-c", pinned, capture=True).strip()
    shutil.copyfile(ROOT / "script" / "lib" / "get_pip.py", cache / f"get_pip_{version.replace('.', '_')}.py")
    # pip reads both of these: its own settings for this home, and the person's, such as another package index.
    (home / ".pip").mkdir(exist_ok=True)
    (home / ".pip" / "pip.conf").write_text("[global]\nquiet = 2\n")
    persons, linked = Path.home() / ".config" / "pip", home / ".config" / "pip"
    if persons.is_dir() and not linked.exists():
        linked.parent.mkdir(exist_ok=True)
        linked.symlink_to(persons)
    return home


# The series itself.


def attempt(chosen: Part) -> Result:
    """Run one part, and tell how it went whatever it raises."""
    print(f"\n=== {chosen.name}: {chosen.description}", flush=True)
    start = time.monotonic()
    passed = False
    try:
        chosen.function()
        passed = True
    except SystemExit as problem:
        print(f"{chosen.name}: {problem}", flush=True)
    except Exception:  # a fault of the part itself must not hide the parts after it
        traceback.print_exc()
    seconds = time.monotonic() - start
    print(f"=== {chosen.name}: {'passed' if passed else 'FAILED'} in {seconds:.0f} s", flush=True)
    return Result(chosen.name, seconds, passed)


def table(results: list[Result]) -> str:
    """The results as a Markdown table, which also reads well on a terminal."""
    width = max(len(result.name) for result in results)
    lines = [f"| {'part':<{width}} | seconds | result |", f"| {'-' * width} | ------: | ------ |"]
    for result in results:
        lines.append(f"| {result.name:<{width}} | {result.seconds:7.0f} | {'passed' if result.passed else 'FAILED'} |")
    return "\n".join(lines)


def setting() -> str:
    """The machine and the versions that a result holds for."""
    system = platform.freedesktop_os_release()["PRETTY_NAME"]
    ansible = tool("ansible", "--version", capture=True).splitlines()[0]
    return f"{system}, {os.cpu_count()} cores, Python {platform.python_version()}, {ansible}"


def record(machine: str, results: list[Result]) -> None:
    """Keep the result of a full series in the repository, with its date and the machine."""
    FULL_RESULT.write_text(
        f"# The full test series\n\nWritten by `script/test full` on {today()}: {machine}.\n\n{table(results)}\n"
    )


def today() -> datetime.date:
    """The date, in UTC."""
    return datetime.datetime.now(datetime.UTC).date()


def chosen_parts(names: list[str]) -> list[Part]:
    """The parts of these names in the order of the series. Raises SystemExit for an unknown name."""
    unknown = [name for name in names if name not in PARTS and name != "full"]
    if unknown:
        raise SystemExit(f"There is no part {', '.join(unknown)}. The parts are: {', '.join(PARTS)}, and full for all")
    if "full" in names:
        return list(PARTS.values())
    return [entry for entry in PARTS.values() if (entry.name in names if names else not entry.long)]


def main() -> int:
    """Run what the command line names; exit status 1 if a part failed."""
    parser = argparse.ArgumentParser(prog="script/test", description="Runs all parts but the long, or those named.")
    parser.add_argument("parts", nargs="*", metavar="NAME", help="a part, or: full (all parts, the long ones too)")
    parser.add_argument("--list", action="store_true", help="name the parts and stop")
    parser.add_argument(
        "--all", action="store_true", help="with part locks: install every release, and keep the result"
    )
    arguments = parser.parse_args()
    if arguments.list:
        for entry in PARTS.values():
            print(f"{entry.name:<10} {entry.description}{' (long)' if entry.long else ''}")
        return 0
    chosen = chosen_parts(arguments.parts)
    if arguments.all:
        chosen = [replace(entry, function=all_locks) if entry.name == "locks" else entry for entry in chosen]
    machine = setting()
    print(machine, flush=True)
    results = [attempt(entry) for entry in chosen]
    if "full" in arguments.parts:
        record(machine, results)
    failed = sum(not result.passed for result in results)
    # CI reads the last line, in exactly this form.
    print(f"\n{table(results)}\n\n{len(results) - failed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
