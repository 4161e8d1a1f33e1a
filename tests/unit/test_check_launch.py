# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The script that judges a launch as the service user, beside a package that stands in for SGLang."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "roles/sglang_server/files/check_launch.py"
SERVER_ARGS = """
class ServerArgs:
    def add_cli_args(parser):
        for name in ("--pp-size", "--config", "--api-key"):
            parser.add_argument(name)

    @classmethod
    def from_cli_args(cls, arguments):
        print(sorted(vars(arguments).items()))
        return cls()

    def check_server_args(self):
        pass
"""
MERGER = """
class ConfigArgumentMerger:
    def __init__(self, parser):
        pass

    def merge_config_with_args(self, flags):
        index = flags.index("--config")
        return ["--api-key", open(flags[index + 1]).read(), *flags[:index], *flags[index + 2:]]
"""
Check = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Judge these flags; the environment is a unit's, with all programs in its PATH."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "bin").mkdir()
    for name in ("ninja", "nvcc", "c++", "gcc"):
        (tmp_path / "bin" / name).touch(mode=0o755)
    package = tmp_path / "sglang/srt"
    (package / "utils").mkdir(parents=True)
    (package / "plugins.py").write_text("def load_plugins():\n    pass\n")
    (package / "server_args.py").write_text(SERVER_ARGS)

    def run(*flags: str, without: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        if without:
            (tmp_path / "bin" / without).unlink()
        argv = [sys.executable, "-", str(tmp_path / "model"), *flags]
        environment = {"PATH": f"{tmp_path}/bin", "PYTHONPATH": str(tmp_path)} | environment
        script = SCRIPT.read_text(encoding="utf-8")
        return subprocess.run(argv, input=script, env=environment, capture_output=True, text=True, check=False)

    return run


def test_what_would_start_passes(check: Check) -> None:
    done = check("--pp-size", "8")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("program", "told"),
    [("ninja", "ninja"), ("nvcc", "nvcc"), ("c++", "a C++ compiler"), ("gcc", "a C compiler")],
)
def test_a_program_that_the_unit_cannot_reach(check: Check, program: str, told: str) -> None:
    """C08: flashinfer-ai/flashinfer#3386."""
    done = check("--pp-size", "8", without=program)
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{told} is not reachable from the unit, whose PATH is ")


def test_a_path_without_the_release_lacks_all_of_them(check: Check) -> None:
    done = check("--pp-size", "8", PATH="/nowhere")
    assert done.stdout.count("is not reachable from the unit") == 4


def test_compilers_may_be_named(check: Check, tmp_path: Path) -> None:
    for name in ("c++", "gcc"):
        (tmp_path / "bin" / name).rename(tmp_path / f"other-{name}")
    done = check("--pp-size", "8", CXX=f"{tmp_path}/other-c++", CC=f"{tmp_path}/other-gcc")
    assert done.returncode == 0, done.stdout


def test_another_compiler_for_c_will_do(check: Check, tmp_path: Path) -> None:
    (tmp_path / "bin/gcc").rename(tmp_path / "bin/clang")
    assert check("--pp-size", "8").returncode == 0


@pytest.mark.parametrize("folder", ["", "utils"], ids=["to 0.5.18", "from 0.5.19"])
def test_a_file_of_flags_is_read_by_the_release(check: Check, tmp_path: Path, folder: str) -> None:
    (tmp_path / "sglang/srt" / folder / "server_args_config_parser.py").write_text(MERGER)
    (tmp_path / "flags.yml").write_text("a key")
    done = check("--config", str(tmp_path / "flags.yml"), "--pp-size", "8")
    assert done.stdout.strip() == str([("api_key", "a key"), ("config", None), ("pp_size", "8")])


def test_a_wrong_flag_is_told(check: Check) -> None:
    done = check("--pp-sise", "8")
    assert done.returncode == 1
    assert "unrecognized arguments: --pp-sise 8: correct sglang_server_flags" in done.stdout
