# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module cuda_toolkit with toolkits that packages or others installed, and what keeps a toolkit from being removed.

Wheels: test_modules.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import (
    activations,
    pruning,
    toolkit_rules,
    toolkit_users,
    toolkits,
    wheels,
)
from ansible_collections.inference.sglang.plugins.modules import cuda_toolkit, preflight
from test_modules import fat_binary, run, snapshot

__all__ = ["run"]  # a fixture

NVCC = """#!/bin/sh
[ "$1" != --version ] || { echo "Cuda compilation tools, release 13.0, V$(cat "${0%/*}/version")"; exit; }
echo compiled >> "${0%/*}/log"
cp "${0%/*}/binary" "$4"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toolkit that is complete."""
    home = tmp_path / "cuda-13.0"
    for name in (*toolkit_rules.NEEDED, "bin/nvcc"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    (home / "bin/nvcc").write_text(NVCC)
    (home / "bin/nvcc").chmod(0o755)
    (home / "bin/version").write_text("13.0.88")
    (home / "bin/binary").write_bytes(fat_binary(120) + fat_binary(90))
    (home / "include/cuda_runtime_api.h").write_text("#define CUDART_VERSION 13000\n")
    monkeypatch.setattr(toolkit_rules, "apt_home", lambda _version: str(home))
    # The folders above it are pytest's, and closed.
    monkeypatch.setattr(toolkit_rules, "obstacles", lambda *_given: ((), ()))
    return home


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What dpkg has of CUDA 13.0."""
    found = {"cuda-nvcc-13-0": "13.0.88-1", "cuda-toolkit-13-0": "13.0.2-1"}
    monkeypatch.setattr(toolkits, "debian_packages", lambda version: dict(found) if version == "13.0" else {})
    return found


@pytest.fixture
def given(home: Path, tmp_path: Path) -> dict[str, str]:
    return {"method": "existing", "path": str(tmp_path / "toolkits/own"), "home": str(home), "version": "13.0"}


def test_a_toolkit_that_is_there_is_proven_once(run, given, home, tmp_path):
    before = snapshot(tmp_path)
    foretold = run(cuda_toolkit, check=True, **given)
    assert (foretold["changed"], foretold["manifest"]) == (True, {})
    assert snapshot(tmp_path) == before
    tree = snapshot(home)
    first = run(cuda_toolkit, **given)
    assert (first["changed"], first["cuda_home"]) == (True, str(home))
    expected = {"method": "existing", "home": str(home), "versions": {}, "nvcc": "13.0.88", "headers": "13.0"}
    assert first["manifest"] == expected | {"architectures": {"120f": [90, 120]}}
    assert wheels.read_manifest(given["path"]) == first["manifest"]
    assert snapshot(home) - tree == {home / "bin/log"}, "nothing of ours lies in it"
    again = run(cuda_toolkit, **given)
    assert (again["changed"], again["manifest"]) == (False, first["manifest"])
    assert (home / "bin/log").read_text() == "compiled\n"


def test_another_architecture_is_proven_beside_the_first(run, given):
    run(cuda_toolkit, **given)
    more = run(cuda_toolkit, **given, architecture="90a")
    assert (more["changed"], sorted(more["manifest"]["architectures"])) == (True, ["120f", "90a"])


def test_a_toolkit_that_changed_is_proven_anew(run, given, home):
    run(cuda_toolkit, **given, architecture="90a")
    (home / "bin/version").write_text("13.0.99")
    again = run(cuda_toolkit, **given)
    assert (again["changed"], again["manifest"]["nvcc"]) == (True, "13.0.99")
    assert list(again["manifest"]["architectures"]) == ["120f"], "the other was proven with what is there no longer"


def test_a_toolkit_that_proves_nothing_has_no_manifest(run, given, home):
    run(cuda_toolkit, **given)
    (home / "bin/version").write_text("13.0.99")
    (home / "bin/binary").write_bytes(b"")
    assert "no architecture" in run(cuda_toolkit, **given)["msg"]
    assert wheels.read_manifest(given["path"]) is None


def test_c09_a_link_is_refused_also_in_check_mode(run, given, home, tmp_path):
    (tmp_path / "cuda").symlink_to(home)
    (home / "bin/version").write_text("12.8.93")
    for check in (True, False):
        failed = run(cuda_toolkit, check=check, **given | {"home": str(tmp_path / "cuda")}, torch="13.0")
        assert failed["failed"] is True
        assert "CUDA_HOME resolves to 12.8; torch is 13.0; SM120 JIT needs >= 12.9" in failed["msg"]
        assert "toolkit.link" in {finding["id"] for finding in failed["findings"]}
    assert not Path(given["path"]).exists()


def test_what_is_missing_is_told(run, given, home):
    (home / "lib64/libcublas.so").unlink()
    assert "lacks lib64/libcublas.so" in run(cuda_toolkit, **given)["msg"]
    (home / "bin/nvcc").unlink()
    failed = run(cuda_toolkit, check=True, **given)
    assert "bin/nvcc does not answer" in failed["msg"]


def test_a_compiler_of_another_machine_is_told(run, given, home):
    (home / "bin/nvcc").write_bytes(b"\x7fELF")
    assert "bin/nvcc does not answer: [Errno 8]" in run(cuda_toolkit, **given)["msg"]


def test_packages_are_recorded_with_their_versions(run, given, packages, home):
    given = given | {"method": "apt"}
    first = run(cuda_toolkit, **given)
    assert first["manifest"]["versions"] == packages
    assert run(cuda_toolkit, **given)["changed"] is False
    packages["cuda-nvcc-13-0"] = "13.0.99-1"
    assert run(cuda_toolkit, **given)["changed"] is True


def test_check_mode_foretells_packages_that_are_not_there_yet(run, given, packages, home):
    (home / "bin/nvcc").unlink()
    foretold = run(cuda_toolkit, check=True, **given | {"method": "apt"})
    assert (foretold["changed"], foretold["manifest"]) == (True, {})


def test_what_wheels_need_is_told(run, tmp_path):
    failed = run(cuda_toolkit, path=str(tmp_path / "t"))
    assert "method is wheels but the following are missing: lock, uv, cache_path" in failed["msg"]


STATUS = """Package: cuda-nvcc-13-0
Status: install ok installed
Version: 13.0.88-1

Package: cuda-toolkit-13-0-config-common
Version: 13.0.96-1
Status: hold ok installed

Package: cuda-nvcc-12-8
Status: install ok installed
Version: 12.8.93-1

Package: libcublas-13-0
Status: deinstall ok config-files
Version: 13.1.0.3-1

Package: cuda-13-0
Status: install ok half-installed
Version: 13.0.2-1
"""


def test_installed_packages_of_one_version_are_read_from_dpkg(tmp_path):
    assert toolkits.debian_packages("13.0", tmp_path) == {}
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(STATUS)
    expected = {"cuda-nvcc-13-0": "13.0.88-1", "cuda-toolkit-13-0-config-common": "13.0.96-1"}
    assert toolkits.debian_packages("13.0", tmp_path) == expected


# Removal.


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of instances, units, kernel caches and processes that are empty."""
    monkeypatch.setattr(activations, "FOLDER", tmp_path / "etc")
    monkeypatch.setattr(pruning, "KERNEL_CACHES", tmp_path / "kernels")
    monkeypatch.setattr(pruning, "_units", lambda: sorted((tmp_path / "units").glob("*.service")))
    monkeypatch.setattr(pruning, "running", lambda folder: processes)
    processes: dict[str, str] = {}
    for name in ("etc", "units", "kernels"):
        (tmp_path / name).mkdir()
    return tmp_path


def plan(etc: Path, cuda_home: object, slot: str = "") -> Path:
    path = etc / "etc" / "tiny" / slot / "plan.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cuda_home": cuda_home, "release_path": str(etc / "releases/r")}))
    return path


def test_a_removal_takes_what_is_ours_and_leaves_the_folder_of_others(run, given, home, etc):
    run(cuda_toolkit, **given)
    for name in ("0.5.23-a-none-own", "0.5.23-a-none-other"):
        (etc / "kernels" / name).mkdir()
    tree = snapshot(home)
    foretold = run(cuda_toolkit, check=True, state="absent", **given)
    assert foretold["removed"] == [given["path"], str(etc / "kernels/0.5.23-a-none-own")]
    assert Path(given["path"]).exists()
    gone = run(cuda_toolkit, state="absent", **given)
    assert (gone["changed"], gone["removed"]) == (True, foretold["removed"])
    assert snapshot(home) == tree
    assert list(Path(given["path"]).parent.iterdir()) == []
    assert os.listdir(etc / "kernels") == ["0.5.23-a-none-other"]
    assert run(cuda_toolkit, state="absent", **given)["changed"] is False


@pytest.mark.parametrize("slot", ["", "good", "previous"])
def test_a_toolkit_that_a_plan_names_stays(run, given, home, etc, slot):
    run(cuda_toolkit, **given)
    path = plan(etc, str(home), slot)
    failed = run(cuda_toolkit, state="absent", **given)
    assert f"{home} is in use: named by {path}" in failed["msg"]
    plan(etc, "/usr/local/cuda-13.9", slot)
    assert run(cuda_toolkit, state="absent", **given)["changed"] is True


def test_a_toolkit_of_wheels_is_used_by_its_home(run, etc, tmp_path):
    own = tmp_path / "toolkits/13.0-a"
    (own / "nvidia/cu13").mkdir(parents=True)
    path = plan(etc, str(own / "nvidia/cu13"))
    assert f"named by {path}" in run(cuda_toolkit, state="absent", path=str(own))["msg"]
    path.unlink()
    assert run(cuda_toolkit, state="absent", path=str(own))["changed"] is True
    assert not own.exists()


def test_a_toolkit_that_a_service_names_stays(given, home, etc):
    (etc / "units/mine.service").write_text(f"[Service]\nEnvironment=PATH=/usr/bin:{home}/bin\n")
    (finding,) = toolkit_users.keeps(home)
    assert finding.seen.endswith(f"named by {etc}/units/mine.service")
    assert toolkit_users.keeps(etc / "units") == []


def test_a_toolkit_that_a_process_uses_stays(home, etc):
    pruning.running(home.parent)[home.name] = "process 7 runs from it"
    (finding,) = toolkit_users.keeps(home)
    assert "process 7" in finding.seen


@pytest.mark.parametrize("content", ["{", "[]", '{"cuda_home": 1}', "{}"])
def test_a_plan_that_cannot_be_read_keeps_every_toolkit(home, etc, content):
    plan(etc, "").write_text(content)
    (finding,) = toolkit_users.keeps(home)
    assert "does not say which toolkit it is of" in finding.seen


def test_a_plan_without_its_release_keeps_every_toolkit(home, etc):
    plan(etc, "/elsewhere").write_text('{"cuda_home": "/elsewhere"}')
    (finding,) = toolkit_users.keeps(home)
    assert "does not say which release it is of" in finding.seen


# Preflight judges a toolkit that is there before anything is changed.


def preflighted(run, tmp_path: Path, **more: object) -> tuple[list[str], dict]:
    """Ids of the findings about the toolkit, and what was read."""
    places = {name: str(tmp_path / name) for name in ("releases_path", "cache_path", "toolkit")}
    result = run(preflight, release="0.5.12.post1", gpu_required=False, **places, **more)
    room = ("toolkit.", "cuda.toolkit", "cuda.headers")
    return [finding["id"] for finding in result["findings"] if finding["id"].startswith(room)], result["facts"]


def test_preflight_reads_the_folder_of_a_toolkit_that_is_there(run, home, tmp_path):
    found, facts = preflighted(run, tmp_path, cuda_home=str(home), cuda_version="13.0")
    assert found == []
    assert facts["toolkit"]["home"] == str(home)
    assert facts["toolkit"]["nvcc"] == "13.0.88"
    assert preflighted(run, tmp_path, cuda_home=f"{home}/")[1]["toolkit"] == facts["toolkit"]
    assert preflighted(run, tmp_path)[1]["toolkit"] is None

    link = tmp_path / "cuda"
    link.symlink_to(home)
    assert preflighted(run, tmp_path, cuda_home=str(link))[0] == ["toolkit.link"]
    assert preflighted(run, tmp_path, cuda_home=str(home), cuda_version="13.1")[0] == ["toolkit.version"]
    (home / "include/cublas_v2.h").unlink()
    assert preflighted(run, tmp_path, cuda_home=str(home))[0] == ["toolkit.incomplete"]
    (home / "include/cuda_runtime_api.h").write_text("#define CUDART_VERSION 12080\n")
    assert preflighted(run, tmp_path, cuda_home=str(home))[0] == ["toolkit.mixed", "toolkit.incomplete"]
    assert preflighted(run, tmp_path, cuda_home=str(tmp_path / "none"))[0] == ["toolkit.missing"]


def test_a_recorded_toolkit_is_judged_where_it_was_recorded_and_is_the_one_that_is_meant(run, home, tmp_path):
    (home / "include/cublas_v2.h").unlink()
    _found, facts = preflighted(run, tmp_path, cuda_home=str(home))
    facts = json.loads(json.dumps(facts))
    assert preflighted(run, tmp_path, cuda_home=str(home), recorded=facts) == (["toolkit.incomplete"], facts)
    assert preflighted(run, tmp_path, cuda_home="/elsewhere", recorded=facts)[0] == []
    old = {name: facts[name] for name in ("node", "hardware")}
    assert preflighted(run, tmp_path, cuda_home=str(home), recorded=old)[0] == []
    places = {name: str(tmp_path / name) for name in ("releases_path", "cache_path", "toolkit")}
    for strange in ({"home": str(home)}, "text"):
        given = {"release": "0.5.12.post1", **places, "cuda_home": str(home), "recorded": {**facts, "toolkit": strange}}
        assert "recorded is not what this module returned as facts" in run(preflight, **given)["msg"]
