# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The stand-in for the driver's library: where it must not be, and what it answers."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import driver_stub
from ansible_collections.inference.sglang.plugins.module_utils.toolkits import compile_library
from ansible_collections.inference.sglang.plugins.module_utils.wheels import InstallError

SOURCE = """
int cuInit(unsigned); int cuDeviceGetCount_v2(int *); int cudaMalloc(void **); int cublasCreate(void);
static int cuHidden(void) { return 1; }
int cuDefinedHere(void) { return cuInit(0) + cuDeviceGetCount_v2(0) + cudaMalloc(0) + cublasCreate() + cuHidden(); }
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The libraries of a release, each of which wants a function that the others do not."""
    for number, library in enumerate(driver_stub._LINKED):
        path = tmp_path / "site-packages" / library
        path.parent.mkdir(parents=True, exist_ok=True)
        compile_library(
            SOURCE if number == 0 else f"int cuF{number}(void); int f(void) {{ return cuF{number}(); }}", path, "x.so"
        )
    return tmp_path / "site-packages"


@pytest.mark.parametrize(
    "sign", ["proc/driver/nvidia/version", "dev/nvidiactl", "usr/lib/x86_64-linux-gnu/libcuda.so.1"]
)
def test_a_driver_is_seen_by_each_of_its_signs(tmp_path, sign):
    assert driver_stub.driver(tmp_path) == ""
    (tmp_path / sign).parent.mkdir(parents=True)
    (tmp_path / sign).touch()
    assert driver_stub.driver(tmp_path) == f"/{sign}"
    finding = driver_stub.refuse_driver(f"/{sign}")
    assert (finding.id, finding.severity) == ("cpu_engine.driver", "error")
    assert f"/{sign}" in finding.seen


def test_symbols_are_the_drivers_functions_that_are_wanted(packages):
    assert driver_stub.symbols(packages) == ["cuDeviceGetCount_v2", "cuF1", "cuF2", "cuF3", "cuInit"]


def test_every_function_answers_that_there_is_no_device(packages, tmp_path):
    driver_stub.build(packages, tmp_path / "lib")
    assert [path.name for path in (tmp_path / "lib").iterdir()] == ["libcuda.so.1"]
    library = ctypes.CDLL(str(tmp_path / "lib" / "libcuda.so.1"))
    assert {getattr(library, name)() for name in driver_stub.symbols(packages)} == {driver_stub.NO_DEVICE}
    read = subprocess.run(["nm", "-D", tmp_path / "lib" / "libcuda.so.1"], check=True, capture_output=True, text=True)
    assert "cudaMalloc" not in read.stdout


def test_a_release_without_one_of_the_libraries_is_named(packages, tmp_path):
    (packages / driver_stub._LINKED[-1]).unlink()
    with pytest.raises(InstallError, match=f"nm cannot read {driver_stub._LINKED[-1]}"):
        driver_stub.build(packages, tmp_path / "lib")
    assert not (tmp_path / "lib" / "libcuda.so.1").exists()
