# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A CUDA toolkit on a node: what wheels lack for linking, what is there, and the proof that it compiles."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ansible_collections.inference.sglang.plugins.module_utils import cubins, toolkit_rules
from ansible_collections.inference.sglang.plugins.module_utils.toolkit_rules import Tree
from ansible_collections.inference.sglang.plugins.module_utils.wheels import InstallError

HOME = "nvidia/cu13"  # where the wheels of CUDA 13 put bin, include, lib and nvvm: rule home of toolkit_rules, too

# CUB and bfloat16 are what SGLang's kernels use; CUB's headers refuse an nvcc of another minor version.
PROBE = """\
#include <cstdio>
#include <cub/cub.cuh>
#include <cuda_bf16.h>

__global__ void sum(const __nv_bfloat16* in, float* out) {
  using Reduce = cub::BlockReduce<float, 128>;
  __shared__ typename Reduce::TempStorage storage;
  float total = Reduce(storage).Sum(__bfloat162float(in[threadIdx.x]));
  if (threadIdx.x == 0) *out = total;
}

int main() {
  sum<<<1, 128>>>(nullptr, nullptr);
  std::puts(cudaGetErrorString(cudaGetLastError()));
}
"""


def home(folder: str) -> Path:
    """CUDA_HOME of the toolkit in ``folder``."""
    return Path(folder) / HOME


def add_link_names(folder: str) -> None:
    """Add what the wheels lack: ``lib64``, ``libX.so`` beside ``libX.so.N``, and a ``libcuda.so`` to link against.

    The last is only for the linker (``lib/stubs``, as in NVIDIA's own packages); at run time the driver brings it.
    """
    cuda_home = home(folder)
    library = cuda_home / "lib"
    links = {cuda_home / "lib64": "lib"}
    for versioned in sorted(library.glob("lib*.so.*")):
        links[library / f"{versioned.name.split('.so.')[0]}.so"] = versioned.name
    for link, target in links.items():
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(target)
    stubs = library / "stubs"
    stubs.mkdir(exist_ok=True)
    compile_library("int cuInit(unsigned flags) { return 100; }\n", stubs / "libcuda.so", "libcuda.so.1")


def compile_library(source: str, path: Path, soname: str) -> None:
    """Compile C ``source`` with gcc into the shared library ``path``; InstallError shows the compiler's words."""
    argv = ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{soname}", "-x", "c", "-", "-o", str(path)]
    run_tool(argv, f"gcc could not make {path}", source=source)


def run_tool(
    argv: Sequence[str], failure: str, *, source: str = "", environment: Mapping[str, str] | None = None
) -> str:
    """Standard output of a compiler or one of its tools, given ``source`` on its standard input.

    Raises InstallError, with ``failure`` and the tool's own words.
    """
    try:
        # pylint: disable-next=ansible-bad-function # no AnsibleModule here, and its run_command adds to the environment
        done = subprocess.run(
            argv, input=source, env=environment, text=True, errors="replace", capture_output=True, check=False
        )
    except FileNotFoundError as missing:
        remedy = "" if "/" in argv[0] else ": add its package to uv_packages"
        raise InstallError(f"{failure}: {argv[0]} is not on the node{remedy}") from missing
    if done.returncode != 0:
        raise InstallError(f"{failure}:\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def read(cuda_home: str, uid: int, gids: Sequence[int]) -> Tree:
    """What lies at a CUDA_HOME. Its compiler is asked for its version; the user of these ids is to work with it."""
    folder, nvcc, complaint = Path(cuda_home), "", ""
    try:
        nvcc = toolkit_rules.nvcc_version(run_tool([f"{cuda_home}/bin/nvcc", "--version"], "It failed", environment={}))
    except (InstallError, OSError) as failure:
        there = os.path.lexists(f"{cuda_home}/bin/nvcc")
        complaint = " ".join(str(failure).split()) if there else "there is no such file"
    unreadable, writable = toolkit_rules.obstacles(folder, uid, gids)
    return Tree(
        target=os.path.realpath(cuda_home),
        nvcc=nvcc,
        complaint=complaint,
        headers=toolkit_rules.headers_version(folder),
        missing=tuple(name for name in toolkit_rules.NEEDED if not (folder / name).exists()),
        unreadable=unreadable,
        writable=writable,
    )


def debian_packages(version: str, root: Path = Path("/")) -> dict[str, str]:
    """The installed packages of a CUDA version (``13.0``: ``cuda-nvcc-13-0``, ``libcublas-13-0``), with versions.

    From dpkg's status file. That of a package's configuration is named ``…-13-0-config-common``.
    """
    try:
        text = (root / "var/lib/dpkg/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    named = re.compile(rf"^Package: (\S+-{version.replace('.', '-')}(?:-config-common)?)$", re.MULTILINE)
    found = {}
    for stanza in text.split("\n\n"):
        name, number = named.search(stanza), re.search(r"^Version: (\S+)$", stanza, re.MULTILINE)
        if name and number and re.search(r"^Status: .* installed$", stanza, re.MULTILINE):
            found[name[1]] = number[1]
    return dict(sorted(found.items()))


def compile_probe(folder: str, architecture: str, cuda_home: Path | None = None) -> set[int]:
    """Compile the probe for ``architecture`` (``120f``) without a GPU; the architectures that its binary holds.

    ``cuda_home``  of the toolkit; without it, that of the wheels in ``folder``

    The binary stays as ``<folder>/probe/<architecture>``. Raises InstallError when nvcc fails or the cubin is missing.
    """
    cuda_home = cuda_home or home(folder)
    probe = Path(folder) / "probe"
    probe.mkdir(parents=True, exist_ok=True)
    source, binary = probe / "probe.cu", probe / architecture
    source.write_text(PROBE, encoding="utf-8")
    code = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    environment = {"PATH": f"{cuda_home}/bin:/usr/local/bin:/usr/bin:/bin", "CUDA_HOME": str(cuda_home)}
    nvcc = [f"{cuda_home}/bin/nvcc", code, str(source), "-o", str(binary)]
    run_tool(nvcc, f"nvcc could not compile {source} for {architecture}", environment=environment)
    held = cubins.architectures(binary.read_bytes())
    wanted = int(re.sub(r"\D", "", architecture))
    if wanted not in held:
        raise InstallError(f"{binary} holds code for {sorted(held) or 'no architecture'}, not for {wanted}")
    return held
