# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How many compilers run at a time, and the role's script on packages that stand in for a release's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import kernel_builds

SCRIPT = Path(__file__).resolve().parents[2] / "roles/flashinfer/files/build_modules.py"
GB = 10**9


@pytest.mark.parametrize(
    ("cpus", "available", "expected"),
    [(16, 64 * GB, 16), (64, 64 * GB, 32), (64, 3 * GB, 1), (2, 0, 1), (1, 64 * GB, 1)],
)
def test_compilers_fit_processors_and_memory(cpus, available, expected):
    assert kernel_builds.jobs(cpus, available, 2 * GB) == expected


def test_memory_is_what_programs_can_have():
    meminfo = "MemTotal:       65801028 kB\nMemFree:          812 kB\nMemAvailable:       5000 kB\n"
    assert kernel_builds.available_memory(meminfo) == 5000 * 1024
    assert kernel_builds.available_memory("MemTotal: 5 kB\n") == 0
    assert kernel_builds.jobs(4, kernel_builds.available_memory("")) == 1


def test_what_the_user_bounds_stays():
    meminfo = f"MemAvailable: {64 * GB // 1024} kB"
    assert kernel_builds.environment({}, 4, meminfo) == {"MAX_JOBS": "4", "FLASHINFER_NVCC_THREADS": "1"}
    assert kernel_builds.environment({"MAX_JOBS": 1}, 4, meminfo) == {"FLASHINFER_NVCC_THREADS": "1"}


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("ninja: build stopped: subcommand failed.\nnvcc fatal: Killed", 1),
        ("g++: fatal error: Killed signal terminated program cc1plus", 1),
        ("RuntimeError: Ninja build failed, exit code 137", 1),
        ("main process exited, code=killed, status=9/KILL; code=137", 1),
        ("", 137),
        ("", -9),
    ],
)
def test_a_compiler_that_was_killed_is_known(words, status):
    assert kernel_builds.killed(words, status)


@pytest.mark.parametrize("words", ["", "ptxas died", "killed kernels are 1370", "exit code 1", "error: 137 registers"])
def test_other_failures_are_no_lack_of_memory(words):
    assert not kernel_builds.killed(words, 1)


# A FlashInfer that has three of the modules; rope does not compile.
FLASHINFER = """
from pathlib import Path

class Specification:
    def __init__(self, name):
        self.name = name
    def build(self, verbose):
        if self.name == "rope":
            raise RuntimeError("Ninja build failed:\\n" + 5000 * "x" + "ptxas died")
    def get_library_path(self):
        return Path("/cache", self.name + ".so")

def gen_{name}_module():
    return Specification("{name}")
"""

# A kernel of SGLang's: it maps a library of the cache, as the real loader does, named by arguments and architecture.
KERNEL = """
import mmap, os
from {utils} import current

def {function}(*arguments):
    words = [str(word).lower() for word in arguments]
    folder = "_".join(["{name}", *words, current[0]])
    path = os.path.join(os.environ["TVM_FFI_CACHE_DIR"], folder, "sgl_kernel_jit_k.so")
    os.makedirs(os.path.dirname(path))
    with open(path, "wb+") as stream:
        stream.write(b"0" * 4096)
        stream.flush()
        {function}.kept = mmap.mmap(stream.fileno(), 4096)
"""

ARCHITECTURE = """
from contextlib import contextmanager

current = ["0.0"]

@contextmanager
def override_jit_cuda_arch(major, minor, suffix="?"):
    current[0] = f"{major}.{minor}{suffix}"
    yield
    current[0] = "0.0"
"""


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the role's script, as the module does, on two releases' layouts."""

    def write(path: str, content: str) -> None:
        file = tmp_path / "site" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        for folder in list(file.relative_to(tmp_path / "site").parents)[:-1]:
            (tmp_path / "site" / folder / "__init__.py").touch()
        file.write_text(content)

    for name in ("norm", "rope", "sampling"):
        write(f"flashinfer/jit/{name}.py", FLASHINFER.replace("{name}", name))
    write("torch.py", "bfloat16 = 'bf16'\nint64 = 'i64'\n")
    write("old/sglang/jit_kernel/utils.py", ARCHITECTURE)
    write("new/sglang/kernels/jit/utils/__init__.py", ARCHITECTURE)
    write("new/sglang/kernels/jit/utils/arch.py", "def _cuda_arch_suffix(major, minor): return 'f'\n")
    for place, utils, name, function in (
        ("old/sglang/jit_kernel", "sglang.jit_kernel.utils", "activation", "_jit_activation_module"),
        ("old/sglang/jit_kernel", "sglang.jit_kernel.utils", "gptq_marlin", "_jit_gptq_marlin_module"),
        ("new/sglang/kernels/ops/activation", "sglang.kernels.jit.utils", "activation", "activation_module"),
        ("new/sglang/kernels/ops/gemm", "sglang.kernels.jit.utils", "gptq_marlin", "_jit_gptq_marlin_module"),
    ):
        content = KERNEL.replace("{utils}", utils).replace("{name}", name).replace("{function}", function)
        write(f"{place}/{name}.py", content)
    write("old/sglang/jit_kernel/clamp_position.py", "import torch_of_another_release\n")

    def run(*names: str, release: str = "old", architectures: str = "12.0f") -> subprocess.CompletedProcess[str]:
        site = tmp_path / "site"
        return subprocess.run(
            [sys.executable, "-", *names],
            input=SCRIPT.read_text(),
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": f"{site}:{site / release}",
                "FLASHINFER_CUDA_ARCH_LIST": architectures,
                "TVM_FFI_CACHE_DIR": str(tmp_path / "tvm-ffi"),
            },
            text=True,
            capture_output=True,
            check=False,
        )

    return run


def report(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_kernel_that_fails_is_named_with_the_compilers_last_words(build):
    done = build("rope", "norm")
    found = report(done)
    assert done.returncode == 1
    assert found["libraries"] == {"norm": "/cache/norm.so"}
    assert found["failed"]["rope"].endswith("xptxas died")
    assert len(found["failed"]["rope"]) <= 3000
    assert found["seconds"].keys() == {"norm", "rope"}


@pytest.mark.parametrize(("release", "architecture"), [("old", "12.0"), ("new", "12.0f")])
def test_kernels_of_sglang_are_called_as_its_releases_call_them(build, tmp_path, release, architecture):
    done = build("activation(bfloat16)", "gptq_marlin(true,7)", "sampling", release=release)
    assert done.returncode == 0, done.stdout + done.stderr
    cache = tmp_path / "tvm-ffi"
    assert report(done)["libraries"] == {
        "activation(bfloat16)": f"{cache}/activation_bf16_{architecture}/sgl_kernel_jit_k.so",
        "gptq_marlin(true,7)": f"{cache}/gptq_marlin_true_7_{architecture}/sgl_kernel_jit_k.so",
        "sampling": "/cache/sampling.so",
    }


@pytest.mark.parametrize(
    "name", ["page", "spelling", "kvcache(512)", "resolve_future_token_ids(int64)", "nonsense()", "activation(bf 16)"]
)
def test_a_name_that_the_release_has_not_fails_before_anything_is_compiled(build, tmp_path, name):
    done = build("activation(bfloat16)", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"This release has no kernels {name}. Known are norm, page, " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "tvm-ffi").exists()


def test_a_release_that_does_not_import_is_not_one_without_the_kernel(build):
    assert "torch_of_another_release" in build("clamp_position(int64)").stderr


def test_sglang_compiles_for_one_architecture(build):
    done = build("norm", "activation(bfloat16)", architectures="9.0a 12.0f")
    assert report(done)["libraries"] == {"norm": "/cache/norm.so"}
    assert "FLASHINFER_CUDA_ARCH_LIST is 9.0a 12.0f" in report(done)["failed"]["activation(bfloat16)"]
