# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the commands in script/ share: Debian packages, Python environments, and running programs.

Standard library only: this runs on the system's Python before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

OLDEST_PYTHON = (3, 11)

if sys.version_info < OLDEST_PYTHON:
    raise SystemExit(
        f"Python {'.'.join(map(str, OLDEST_PYTHON))} or newer is needed, and {sys.executable} is "
        f"{sys.version.split()[0]}. Name another in the environment variable PYTHON."
    )

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".state"
PYTHON_MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"

# The core, as scripts and plugins alike import it: ansible_collections.inference.sglang.plugins.module_utils.
sys.path.append(str(ROOT / ".collections"))

Environment = Literal["aiconfigurator", "controller", "development"]


def run(
    argv: Sequence[str | Path], *, cwd: Path = ROOT, env: Mapping[str, str] | None = None, capture: bool = False
) -> str:
    """Show a command, run it, and give its standard output where ``capture`` is set (else an empty string).

    Raises SystemExit, with a sentence that names the command, when it is missing or fails.
    """
    words = [str(word) for word in argv]
    line = shlex.join(_relative(word) for word in words)
    print(f"\033[2m$ {line}\033[0m" if sys.stdout.isatty() else f"$ {line}", flush=True)
    stdout = subprocess.PIPE if capture else None
    try:
        done = subprocess.run(words, cwd=cwd, env=env, check=False, text=True, stdout=stdout)
    except FileNotFoundError:
        raise SystemExit(f"{words[0]} is not installed, or {cwd} does not exist") from None
    if done.returncode != 0:
        if done.stdout:
            print(done.stdout, end="", flush=True)
        raise SystemExit(f"`{line}` failed with exit status {done.returncode}")
    return done.stdout or ""


def require_packages(*names: str) -> None:
    """Install the Debian packages of these names that are missing; do nothing where all are there.

    Raises SystemExit where that needs root or another distribution.
    """
    missing = _missing_packages(names)
    if not missing:
        return
    wanted = " ".join(missing)
    if shutil.which("apt-get") is None:
        raise SystemExit(f"These programs are missing and there is no apt-get here to install them: {wanted}")
    if os.geteuid() != 0:
        raise SystemExit(f"As root, run: apt-get update && apt-get install --no-install-recommends {wanted}")
    print(f"Installing Debian packages: {wanted}", flush=True)
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    apt_get = ["apt-get", "-qq", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=300"]
    run([*apt_get, "update"], env=env)
    # apt-get -qq still passes on what dpkg prints.
    run([*apt_get, "install", "--yes", "--no-install-recommends", *missing], env=env, capture=True)


def environment(name: Environment) -> Path:
    """The virtual environment that holds exactly ``requirements/<name>.txt``, made or renewed where needed."""
    lock = ROOT / "requirements" / f"{name}.txt"
    venv = STATE / f"venv-{name}-{PYTHON_MINOR}"
    stamp = venv / "stamp"
    content = f"{hashlib.sha256(lock.read_bytes()).hexdigest()} {sys.version} {sys.base_prefix}\n"

    def finished() -> bool:
        return stamp.is_file() and stamp.read_text() == content and (venv / "bin" / "python").exists()

    if finished():
        return venv
    STATE.mkdir(exist_ok=True)
    with open(STATE / f"{venv.name}.lock", "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if finished():  # another script made it meanwhile
            return venv
        print(f"Making the {name} environment for Python {PYTHON_MINOR} in {_relative(str(venv))}", flush=True)
        if venv.exists():
            shutil.rmtree(venv)
        _make_venv(venv, lock)
        stamp.write_text(content)
    return venv


def clean_environment(venv: Path) -> dict[str, str]:
    """Environment variables for the commands of ``venv``: this checkout's configuration, none of the caller's."""
    leaking = re.compile(r"ANSIBLE_|MOLECULE_|PYTHON(PATH|HOME)$|VIRTUAL_ENV$|LC_|LANGUAGE$")
    kept = {name: value for name, value in os.environ.items() if not leaking.match(name)}
    if not sys.stdout.isatty():
        kept["NO_COLOR"] = "1"
    return kept | {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_HOME": str(STATE / "ansible"),
        "LC_ALL": "C.UTF-8",
        "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }


def _make_venv(venv: Path, lock: Path) -> None:
    try:
        import ensurepip  # noqa: F401, PLC0415 (Debian ships it apart from Python)
    except ImportError:
        require_packages(f"python{PYTHON_MINOR}-venv")
    # Not this interpreter: it may be the one of the environment that is made anew.
    run([Path(sys.base_exec_prefix) / "bin" / f"python{PYTHON_MINOR}", "-m", "venv", venv])
    python = str(venv / "bin" / "python")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as uv_lock:
        uv_lock.write(_lock_entry(lock, "uv"))
        uv_lock.flush()
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        run([*pip, "install", "--no-deps", "--require-hashes", "--requirement", uv_lock.name])
    # Certificates that the machine's owner added count for uv only when asked.
    env = {"UV_SYSTEM_CERTS": "1"} | os.environ
    uv = [str(venv / "bin" / "uv"), "--quiet"]
    run([*uv, "pip", "sync", "--compile-bytecode", "--require-hashes", "--python", python, lock], env=env)


def _lock_entry(lock: Path, package: str) -> str:
    """The lines of a hashed requirements file that pin one package."""
    entry = re.search(rf"^{re.escape(package)}==.*\n(?:[ ].*\n)*", lock.read_text(), re.MULTILINE)
    if entry is None:
        raise SystemExit(f"{_relative(str(lock))} does not pin {package}: see CONTRIBUTING.md for how to write it anew")
    return entry[0]


def _missing_packages(names: Sequence[str]) -> list[str]:
    if shutil.which("dpkg-query") is None:
        return list(names)
    query = ["dpkg-query", "--show", "--showformat", "${db:Status-Abbrev} ${Package}\n", *names]
    listed = subprocess.run(query, check=False, text=True, capture_output=True).stdout
    installed = {line.split()[1] for line in listed.splitlines() if line.startswith("ii ")}
    return [name for name in names if name not in installed]


def _relative(word: str) -> str:
    """A path below the checkout as it reads from there."""
    return word.removeprefix(f"{ROOT}/")
