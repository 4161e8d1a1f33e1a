# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one table of SGLang releases that this collection installs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding


@dataclass(frozen=True)
class KnownFault:
    """A flag's value that the release's parser accepts and that does not work on one Python.

    ``python``  minor version (``3.13``)
    ``flag``    SGLang's name of the flag, with its dashes
    ``why``     what is the matter, as the end of a sentence
    ``remedy``  what to do, in the imperative
    ``source``  where that is known from
    """

    python: str
    flag: str
    value: str
    why: str
    remedy: str
    source: str


@dataclass(frozen=True)
class Release:
    """One SGLang version, with what its lock files hold.

    ``pythons``     minor versions that have a lock file (``roles/sglang/files/locks/<version>-py<minor>.txt``)
    ``cuda``        CUDA version of its PyTorch build, ``major.minor``
    ``install_mb``  size on disk of the installed release, MB, measured
    ``cache_mb``    size of the wheels in an empty cache, MB, measured
    ``patches``     ids of the patches that this release needs (``patches`` room)
    ``constraints`` what its own pins leave open and today's versions break; the lock is resolved under these
    ``excludes``    by Python minor version, distributions that its lock leaves out for want of a wheel
    ``known_faults``  what a user loses by that, or otherwise cannot have
    """

    version: str
    pythons: tuple[str, ...]
    torch: str
    cuda: str
    flashinfer: str
    kernel: str
    install_mb: int
    cache_mb: int
    patches: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    excludes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    known_faults: tuple[KnownFault, ...] = ()


# CUDA version -> the wheels that make one coherent toolkit (nvcc, headers and libraries of one minor version).
# With a newer nvcc or CCCL than the runtime headers, FlashInfer's kernels do not compile
# (flashinfer-ai/flashinfer#3493).
TOOLKITS: dict[str, tuple[str, ...]] = {
    "13.0": (
        "nvidia-cublas==13.1.1.3",
        "nvidia-cuda-cccl==13.0.85",
        "nvidia-cuda-crt==13.0.88",
        "nvidia-cuda-nvcc==13.0.88",
        "nvidia-cuda-nvrtc==13.0.88",
        "nvidia-cuda-runtime==13.0.96",
        "nvidia-curand==10.4.0.35",
        "nvidia-nvjitlink==13.0.88",
        "nvidia-nvvm==13.0.88",
    ),
}
TOOLKIT_INSTALL_MB = 1300

# Tested with the releases of the table: the wheel that SGLang publishes is tagged manylinux_2_34.
PLATFORM = "x86_64-manylinux_2_34"
UV = "0.13.9"


RELEASES: dict[str, Release] = {
    release.version: release
    for release in (
        Release(
            version="0.5.12.post1",
            pythons=("3.11", "3.12", "3.13"),
            torch="2.11.0",
            cuda="13.0",
            flashinfer="0.6.11.post1",
            kernel="0.4.2.post2",
            install_mb=8900,
            cache_mb=9100,
            patches=("triton-layer-probe",),
            # kernels 0.15 and later refuse what transformers 5.6.0 asks of them at import.
            # mistral-common keeps numpy below 2.4 on Python 3.11 and 3.12 only; the engine is to be the same on 3.13.
            constraints=("kernels<0.15", "numpy<2.4"),
            # SGLang pins outlines 0.1.11, that pins outlines-core 0.1.26, and that has no wheel for Python 3.13.
            # outlines-core 0.2.9 is the first that has one, and lacks the module outlines_core.fsm that outlines needs;
            # an outlines that cannot be imported helps nobody, so both stay out. SGLang imports outlines for one
            # grammar backend only, and only when that is asked for (sglang/srt/constrained/base_grammar_backend.py).
            excludes={"3.13": ("outlines", "outlines-core")},
            known_faults=(
                KnownFault(
                    python="3.13",
                    flag="--grammar-backend",
                    value="outlines",
                    why="outlines-core 0.1.26 has no wheel for it, so the lock leaves outlines out",
                    remedy="Use xgrammar (SGLang's default) or llguidance, or set sglang_python to an older Python",
                    source="plugins/module_utils/releases.py",
                ),
            ),
        ),
    )
}


def check(version: str, python: str | None = None) -> list[Finding]:
    """Judge a release by name and, where the node's is known, by Python minor version (``3.11``)."""
    release = RELEASES.get(version)
    if release is None:
        return [
            Finding(
                "release.unknown",
                "error",
                f"SGLang {version or '(empty)'} is not among the releases of this collection",
                f"Set sglang_release to one of: {', '.join(RELEASES)}",
                "plugins/module_utils/releases.py",
            )
        ]
    if python is not None and python not in release.pythons:
        return [
            Finding(
                "release.python",
                "error",
                f"SGLang {version} has no lock for Python {python}",
                f"Use a node whose Python is one of: {', '.join(release.pythons)}, or set sglang_python",
                "plugins/module_utils/releases.py",
            )
        ]
    return []
