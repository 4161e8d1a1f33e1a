# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which CUDA toolkit may compile a release's kernels: one change, one finding; what is read from a folder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import toolkit_rules
from ansible_collections.inference.sglang.plugins.module_utils.toolkit_rules import Tree, Wanted

WHEELS = Wanted(method="wheels", version="13.0", torch="13.0", path="/t/13.0-a", home="/t/13.0-a/nvidia/cu13")
APT = Wanted(
    method="apt",
    version="13.0",
    torch="13.0",
    path="/t/13.0-apt",
    home="/usr/local/cuda-13.0",
    packages=("cuda-toolkit-13-0", "libnccl2"),
    repository="https://mirror.example/cuda/",
)
EXISTING = replace(APT, method="existing", repository="")
TREE = Tree(target="/usr/local/cuda-13.0", nvcc="13.0.88", headers="13.0")


def told(wanted: Wanted, tree: Tree | None = None) -> list[tuple[str, str]]:
    return [(finding.id, finding.severity) for finding in toolkit_rules.judge(wanted, tree)]


def words(wanted: Wanted, tree: Tree | None = None) -> str:
    (finding,) = toolkit_rules.judge(wanted, tree)
    return str(finding)


@pytest.mark.parametrize("wanted", [WHEELS, APT, EXISTING], ids=lambda wanted: wanted.method)
def test_what_is_fit_has_no_finding(wanted: Wanted) -> None:
    assert told(wanted) == []
    assert told(replace(wanted, torch="")) == []


@pytest.mark.parametrize("wanted", [APT, EXISTING], ids=lambda wanted: wanted.method)
def test_a_fit_folder_has_no_finding(wanted: Wanted) -> None:
    assert told(wanted, TREE) == []


@pytest.mark.parametrize(
    ("changed", "id", "seen"),
    [
        (replace(WHEELS, version="13.1"), "toolkit.unknown", "Set cuda_toolkit_version to one of: 13.0"),
        (replace(APT, version="13", home="/usr/local/cuda-13"), "toolkit.unknown", "'13'"),
        (replace(APT, packages=()), "toolkit.package", "Name cuda-toolkit-13-0"),
        (replace(APT, packages=("cuda-toolkit-13-0", "cuda-nvcc-13-3")), "toolkit.package", "cuda-nvcc-13-3"),
        (replace(APT, package_version="13.1.0-1"), "toolkit.package", "'13.1.0-1', and cuda_toolkit_version 13.0"),
        (replace(APT, package_version="13.0.2 x"), "toolkit.package", "apt-cache policy cuda-toolkit-13-0"),
        (replace(APT, repository=""), "apt.url", "cuda_repository_url"),
        (replace(APT, home="/usr/local/cuda"), "toolkit.home", "/usr/local/cuda, and the method apt makes"),
        (replace(WHEELS, home="/usr/local/cuda-13.0"), "toolkit.home", "cuda_toolkit_method to existing"),
    ],
)
def test_one_change_of_the_settings_one_finding(changed: Wanted, id: str, seen: str) -> None:
    assert told(changed) == [(id, "error")]
    assert seen in words(changed)


def test_an_exact_version_of_the_minor_version_may_be_pinned() -> None:
    assert (
        told(replace(APT, package_version="13.0.2-1", packages=("cuda-toolkit-13-0", "libnccl2=2.28.3-1+cuda13.0")))
        == []
    )


# C02: canonical/checkbox#749.


@pytest.mark.parametrize("name", ["cuda", "cuda-13", "cuda-13-0", "cuda-13-0=13.0.2-1", "cuda-runtime-13-0"])
@pytest.mark.parametrize("wanted", [WHEELS, APT, EXISTING], ids=lambda wanted: wanted.method)
def test_c02_a_package_that_swaps_the_driver_is_refused_with_its_replacement(wanted: Wanted, name: str) -> None:
    said = words(replace(wanted, packages=(name, "libnccl2")))
    assert name.partition("=")[0] in said
    assert "Use cuda-toolkit-13-0 instead" in said


def test_c02_a_driver_is_refused() -> None:
    assert "nvidia_driver" in words(replace(APT, packages=("cuda-toolkit-13-0", "cuda-drivers-580")))


def test_c02_the_replacement_passes() -> None:
    assert told(replace(APT, packages=("cuda-toolkit-13-0",))) == []


# C09: flashinfer-ai/flashinfer#3675, #3493.

OLD = Tree(target="/usr/local/cuda-12.8", nvcc="12.8.93", headers="12.8")


def test_c09_the_link_to_an_old_toolkit() -> None:
    findings = toolkit_rules.judge(replace(EXISTING, home="/usr/local/cuda"), OLD)
    assert "CUDA_HOME resolves to 12.8; torch is 13.0; SM120 JIT needs >= 12.9" in [
        finding.seen for finding in findings
    ]
    assert ("toolkit.link", "error") in told(replace(EXISTING, home="/usr/local/cuda"), OLD)


def test_c09_the_link_to_a_good_toolkit_may_move() -> None:
    said = words(replace(EXISTING, home="/usr/local/cuda"), TREE)
    assert said.startswith("error: toolkit.link: /usr/local/cuda is, or lies behind, a link to /usr/local/cuda-13.0")


def test_c09_the_real_folder_passes_whatever_the_link_says() -> None:
    assert told(EXISTING, TREE) == []


def test_c09_a_newer_compiler_than_its_headers() -> None:
    said = words(replace(EXISTING, version="13.3", torch=""), replace(TREE, nvcc="13.3.20"))
    assert "toolkit.mixed" in said
    assert "is 13.3.20, and its headers are 13.0" in said


@pytest.mark.parametrize(
    ("wanted", "severity"),
    [
        (replace(APT, version="13.1", home="/usr/local/cuda-13.1", packages=("cuda-toolkit-13-1",)), "warning"),
        (replace(APT, version="14.0", home="/usr/local/cuda-14.0", packages=("cuda-toolkit-14-0",)), "error"),
        (replace(APT, torch="13.1"), "error"),
        (replace(EXISTING, version="12.8"), "error"),
    ],
)
def test_the_version_is_held_against_torch_on_the_controller(wanted: Wanted, severity: str) -> None:
    assert told(wanted) == [("toolkit.torch", severity)]


def test_what_sm120_needs_is_told_where_it_matters() -> None:
    assert "SM120" in words(replace(EXISTING, version="12.8"))
    assert "SM120" not in words(replace(EXISTING, version="12.9"))
    assert "SM120" not in words(replace(EXISTING, version="12.8", architecture="90a"))


@pytest.mark.parametrize(
    ("tree", "id", "seen"),
    [
        (replace(TREE, nvcc="", complaint="not found"), "toolkit.missing", "bin/nvcc does not answer: not found"),
        (replace(TREE, headers=""), "toolkit.mixed", "its headers are not there"),
        (replace(TREE, missing=("lib64/libcublas.so",)), "toolkit.incomplete", "cuda-toolkit-13-0"),
        (replace(TREE, unreadable=("/usr/local/cuda-13.0/nvvm",)), "toolkit.unreadable", "chmod -R a+rX"),
        (replace(TREE, writable=("/usr/local/cuda-13.0/bin/nvcc",)), "toolkit.writable", "bin/nvcc"),
        (replace(TREE, target="/srv/cuda"), "toolkit.link", "/srv/cuda"),
    ],
)
def test_one_change_of_the_folder_one_finding(tree: Tree, id: str, seen: str) -> None:
    assert told(EXISTING, tree) == [(id, "error")]
    assert seen in words(EXISTING, tree)


def test_another_version_than_the_settings_say() -> None:
    assert told(replace(EXISTING, version="13.1"), TREE) == [("toolkit.version", "error")]


def test_settings_that_cannot_be_evaluated_are_not_judged_again() -> None:
    values = {
        "method": "apt",
        "version": "13.0",
        "package_version": "",
        "architecture": "120f",
        "path": "/t",
        "home": "/h",
    }
    given = {f"cuda_toolkit_{name}": value for name, value in values.items()}
    read = toolkit_rules.wanted(given | {"cuda_toolkit_packages": ["a"], "cuda_repository_url": "https://u/"}, "13.0")
    assert read == Wanted(**values, packages=("a",), repository="https://u/", torch="13.0")
    del given["cuda_toolkit_path"], given["cuda_toolkit_home"]
    (without,) = [toolkit_rules.wanted(given)]
    assert without is not None
    assert without.home == ""
    assert toolkit_rules.wanted({name: value for name, value in given.items() if "version" not in name}) is None


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("Cuda compilation tools, release 12.8, V12.8.93\nBuild cuda_12.8.r12.8/compiler.35583870_0\n", "12.8.93"),
        ("Cuda compilation tools, release 13.0, V13.0.88", "13.0.88"),
        ("nvcc: command not found", ""),
        ("Cuda compilation tools, rel", ""),
        ("", ""),
    ],
)
def test_the_version_of_nvcc(output: str, version: str) -> None:
    assert toolkit_rules.nvcc_version(output) == version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("#define CUDART_VERSION  13000\n", "13.0"),
        ("/* #define */\n#define CUDART_VERSION 12080", "12.8"),
        ("#define CUDART_VERSION", ""),
        ("\udcff", ""),
    ],
)
def test_the_version_of_the_headers(tmp_path: Path, text: str, version: str) -> None:
    assert toolkit_rules.headers_version(tmp_path) == ""
    (tmp_path / "include").mkdir()
    (tmp_path / "include/cuda_runtime_api.h").write_text(text, encoding="utf-8", errors="surrogateescape")
    assert toolkit_rules.headers_version(tmp_path) == version


# Who may read and who may write. The user is none of those that own anything here.

SERVICE = 64001


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for place in (*tmp_path.parents, tmp_path):
        if place != Path("/") and place.stat().st_uid == os.getuid():
            place.chmod(place.stat().st_mode | 0o055)
    home = tmp_path / "cuda"
    for name in ("bin/nvcc", "include/cuda.h"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    for place in (home, home / "bin", home / "bin/nvcc", home / "include"):
        place.chmod(0o755)
    (home / "include/cuda.h").chmod(0o644)
    (home / "dangling").symlink_to("nowhere")
    return home


def test_what_everybody_may_read_and_root_may_write(folder: Path) -> None:
    assert toolkit_rules.obstacles(folder, SERVICE, ()) == ((), ())


@pytest.mark.parametrize(
    ("name", "mode", "unreadable", "writable"),
    [
        ("bin/nvcc", 0o700, True, False),
        ("bin/nvcc", 0o744, True, False),
        ("include/cuda.h", 0o600, True, False),
        ("include", 0o711, True, False),
        (".", 0o750, True, False),
        ("..", 0o700, True, False),
        ("..", 0o777, False, False),
        ("bin/nvcc", 0o775, False, True),
        ("include", 0o777, False, True),
        (".", 0o757, False, True),
    ],
)
def test_modes(folder: Path, name: str, mode: int, unreadable: bool, writable: bool) -> None:
    path = (folder / name).resolve()
    path.chmod(mode)
    found = toolkit_rules.obstacles(folder, SERVICE, ())
    assert found == (((str(path),) if unreadable else ()), ((str(path),) if writable else ()))


def test_owner_and_group_count(folder: Path) -> None:
    (folder / "bin/nvcc").chmod(0o750)
    os.chown(folder / "bin/nvcc", 0, SERVICE)
    assert toolkit_rules.obstacles(folder, SERVICE, {SERVICE}) == ((), ())
    os.chown(folder / "bin/nvcc", SERVICE, 0)
    assert toolkit_rules.obstacles(folder, SERVICE, ()) == ((), ())
    os.chown(folder / "bin/nvcc", SERVICE + 1, 0)
    assert toolkit_rules.obstacles(folder, SERVICE, ())[1] == (str(folder / "bin/nvcc"),)


def test_root_may_read_everything_and_a_few_paths_suffice(folder: Path) -> None:
    for number in range(9):
        (folder / f"file{number}").touch(mode=0o600)
    assert toolkit_rules.obstacles(folder, 0, ())[0] == ()
    assert len(toolkit_rules.obstacles(folder, SERVICE, ())[0]) == 3
