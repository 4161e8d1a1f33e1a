# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one table of SGLang releases that this collection installs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding


@dataclass(frozen=True)
class KnownFault:
    """What does not work in a release and no patch of this collection mends.

    ``id``      short name, lower case with dashes
    ``seen``    what happens, as a sentence without its full stop
    ``remedy``  what to do, in the imperative
    ``source``  where that is known from
    ``python``  the one Python minor version (``3.13``) that it is so on; empty where the Python does not matter
    ``flag``    SGLang's name of the flag that meets it, with its dashes; empty where no flag tells
    ``value``   the flag's value that meets it
    """

    id: str
    seen: str
    remedy: str
    source: str
    python: str = ""
    flag: str = ""
    value: str = ""


@dataclass(frozen=True)
class Release:
    """One SGLang version, with what its lock files hold.

    ``cuda``        CUDA version of its PyTorch build and of every toolkit wheel in its locks, ``major.minor``
    ``install_mb``  size on disk of the installed release, MB, measured (docs/lock-results.md)
    ``locks``       Python minor version -> digest of ``roles/sglang/files/locks/<version>-py<minor>.txt``
    ``patches``     ids of the shipped patches that change this release
    ``constraints`` what its own pins leave open and today's versions break; the lock is resolved under these
    ``overrides``   requirements of its own that no wheel fulfils, and what the lock has in their place
    ``excludes``    by Python minor version, distributions that its lock leaves out for want of a wheel
    ``known_faults``  what a user loses by that, or otherwise cannot have
    """

    version: str
    torch: str
    cuda: str
    flashinfer: str
    kernel: str
    install_mb: int
    locks: Mapping[str, str]
    patches: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    excludes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    known_faults: tuple[KnownFault, ...] = ()

    @property
    def pythons(self) -> tuple[str, ...]:
        """Minor versions that have a lock, the oldest first."""
        return tuple(self.locks)


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

# The distributions that a toolkit's minor version is read from. cuBLAS and cuRAND count their versions otherwise.
TOOLKIT_PARTS = (
    "nvidia-cuda-cccl",
    "nvidia-cuda-crt",
    "nvidia-cuda-nvcc",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-nvjitlink",
    "nvidia-nvvm",
)

# Tested with the releases of the table: the wheel that SGLang publishes is tagged manylinux_2_34.
PLATFORM = "x86_64-manylinux_2_34"
UV = "0.13.9"

# kernels 0.15 and later refuse what transformers 5.6.0 asks of them at import.
_OLD_KERNELS = ("kernels<0.15",)

# There is no wheel of cuda-tile 1.6.0rc5 on the default index, only an archive that points to NVIDIA's own index.
# SGLang uses it in one prefill kernel of Kimi Delta Attention, which falls back to Triton.
_CUDA_TILE = ("cuda-tile==1.6.0",)

# SGLang pins outlines 0.1.11, that pins outlines-core 0.1.26, and that has no wheel for Python 3.13.
# outlines-core 0.2.9 is the first that has one, and lacks the module outlines_core.fsm that outlines needs;
# an outlines that cannot be imported helps nobody, so both stay out. SGLang imports outlines for one
# grammar backend only, and only when that is asked for (sglang/srt/constrained/base_grammar_backend.py).
_NO_OUTLINES = {"3.13": ("outlines", "outlines-core")}
_OUTLINES = KnownFault(
    id="outlines-python313",
    seen="--grammar-backend outlines does not work on Python 3.13: outlines-core 0.1.26 has no wheel for it, "
    "so the lock leaves outlines out",
    remedy="Use xgrammar (SGLang's default) or llguidance, or set sglang_python to an older Python",
    source="plugins/module_utils/releases.py",
    python="3.13",
    flag="--grammar-backend",
    value="outlines",
)

_DEEP_GEMM = KnownFault(
    id="deep-gemm-sm120",
    seen="DeepGEMM is switched on for every GPU from Hopper on, also for SM120 (RTX PRO 6000), for which it has no "
    "kernels: FP8 block matrices crash there",
    remedy="Set SGLANG_ENABLE_JIT_DEEPGEMM=0 in sglang_server_environment on SM120",
    source="sgl-project/sglang#18870",
)
_GRAPH_REGISTER = KnownFault(
    id="nccl-graph-register",
    seen="With more than one tensor-parallel rank, NCCL may hang in the replay of a CUDA graph whose buffers it has "
    "registered; later releases switch that off themselves",
    remedy="Set NCCL_GRAPH_REGISTER=0 in sglang_server_environment",
    source="sgl-project/sglang#38936",
)
_MINIMAX = KnownFault(
    id="minimax-sparse-layer-probe",
    seen="The pool of MiniMax's sparse attention asks for layer 0 on every pipeline stage, which stages from the "
    "third on do not have",
    remedy="Use 0.5.18 or later for this model with pipeline parallelism",
    source="sgl-project/sglang#30340",
)

_HICACHE = KnownFault(
    id="swa-pipeline-hicache",
    seen="With pipeline parallelism and a sliding-window model, a later stage ends with IndexError when it loads from "
    "the hierarchical cache (read in the sources, not run)",
    remedy="Use 0.5.21 or later, or leave enable-hierarchical-cache out",
    source="roles/sglang/files/patches/swa-start-layer.yml",
)
_SERVER_INFO = KnownFault(
    id="server-info-secrets",
    seen="/server_info returns api_key, admin_api_key and ssl_keyfile_password to whoever may call it",
    remedy="Keep the port on loopback, or block /server_info and /get_server_info in the proxy before it",
    source="sgl-project/sglang#30166",
)

_FP4_CACHE = KnownFault(
    id="fp4-kv-cache-name",
    seen="--kv-cache-dtype fp4_e2m1 passes the parser, and the engine refuses it",
    remedy="Write fp4_mx_block16",
    source="sglang/srt/server_args.py",
    flag="--kv-cache-dtype",
    value="fp4_e2m1",
)

_PROBE, _WINDOW, _KEY, _ABORT = "triton-layer-probe", "swa-start-layer", "api-key-log", "pp-abort"
_ACTIVATION = "activation-gcc12"

RELEASES: dict[str, Release] = {
    release.version: release
    for release in (
        Release(
            version="0.5.11",
            torch="2.11.0",
            cuda="13.0",
            flashinfer="0.6.8.post1",
            kernel="0.4.2",
            install_mb=8590,
            locks={"3.11": "8d6f266e", "3.12": "414f869f"},
            patches=(_PROBE, _WINDOW, _KEY, _ABORT, _ACTIVATION),
            constraints=_OLD_KERNELS,
            known_faults=(_DEEP_GEMM, _GRAPH_REGISTER, _SERVER_INFO),
        ),
        Release(
            version="0.5.12",
            torch="2.11.0",
            cuda="13.0",
            flashinfer="0.6.11.post1",
            kernel="0.4.2.post2",
            install_mb=9485,
            locks={"3.11": "b2424b44", "3.12": "92f66d92"},
            patches=(_PROBE, _WINDOW, _KEY, _ABORT, _ACTIVATION),
            constraints=_OLD_KERNELS,
            known_faults=(_DEEP_GEMM, _GRAPH_REGISTER, _HICACHE, _SERVER_INFO),
        ),
        Release(
            version="0.5.12.post1",
            torch="2.11.0",
            cuda="13.0",
            flashinfer="0.6.11.post1",
            kernel="0.4.2.post2",
            install_mb=9496,
            locks={"3.11": "226273fc", "3.12": "8c490515", "3.13": "546c7722"},
            patches=(_PROBE, _WINDOW, _KEY, _ABORT, _ACTIVATION),
            constraints=_OLD_KERNELS,
            excludes=_NO_OUTLINES,
            known_faults=(_OUTLINES, _DEEP_GEMM, _GRAPH_REGISTER, _HICACHE, _SERVER_INFO),
        ),
        Release(
            version="0.5.13",
            torch="2.11.0",
            cuda="13.0",
            flashinfer="0.6.12",
            kernel="0.4.3",
            install_mb=9865,
            locks={"3.11": "5863ddf0", "3.12": "41bde509"},
            patches=(_PROBE, _WINDOW, _KEY, _ABORT),
            known_faults=(_GRAPH_REGISTER, _HICACHE, _SERVER_INFO),
        ),
        Release(
            version="0.5.13.post1",
            torch="2.11.0",
            cuda="13.0",
            flashinfer="0.6.12",
            kernel="0.4.3",
            install_mb=9865,
            locks={"3.11": "05086077", "3.12": "e7b5538f"},
            patches=(_PROBE, _WINDOW, _KEY, _ABORT),
            known_faults=(_GRAPH_REGISTER, _HICACHE, _SERVER_INFO),
        ),
        Release(
            version="0.5.14",
            torch="2.11.0",
            cuda="13.0",
            flashinfer="0.6.12",
            kernel="0.4.4",
            install_mb=10642,
            locks={"3.11": "8e31f242", "3.12": "cbd6798c"},
            patches=(_PROBE, _WINDOW, _KEY, _ABORT),
            known_faults=(_GRAPH_REGISTER, _HICACHE, _SERVER_INFO),
        ),
        Release(
            version="0.5.15",
            torch="2.11.0",
            cuda="13.0",
            flashinfer="0.6.12",
            kernel="0.4.4",
            install_mb=10693,
            locks={"3.11": "8b084b96", "3.12": "d8ec21b6"},
            patches=(_PROBE, _WINDOW, _KEY, _ABORT),
            known_faults=(_GRAPH_REGISTER, _MINIMAX, _HICACHE, _SERVER_INFO),
        ),
        Release(
            version="0.5.15.post1",
            torch="2.11.0",
            cuda="13.0",
            flashinfer="0.6.12",
            kernel="0.4.4",
            install_mb=10693,
            locks={"3.11": "acf0761f", "3.12": "040a6c07"},
            patches=(_PROBE, _WINDOW, _KEY, _ABORT),
            known_faults=(_GRAPH_REGISTER, _MINIMAX, _HICACHE, _SERVER_INFO),
        ),
        Release(
            version="0.5.16",
            torch="2.11.0",
            cuda="13.0",
            flashinfer="0.6.14",
            kernel="0.4.5",
            install_mb=8890,
            locks={"3.11": "c1c34493", "3.12": "b9784579"},
            patches=(_PROBE, _WINDOW, _KEY),
            known_faults=(_GRAPH_REGISTER, _MINIMAX, _HICACHE, _FP4_CACHE, _SERVER_INFO),
        ),
        Release(
            version="0.5.17",
            torch="2.11.0",
            cuda="13.0",
            flashinfer="0.6.15.post1",
            kernel="0.4.5",
            install_mb=8969,
            locks={"3.11": "3d35feae", "3.12": "9a98cd56", "3.13": "e3baf271"},
            patches=(_PROBE, _WINDOW, _KEY),
            excludes=_NO_OUTLINES,
            known_faults=(_OUTLINES, _GRAPH_REGISTER, _MINIMAX, _HICACHE, _FP4_CACHE, _SERVER_INFO),
        ),
        Release(
            version="0.5.18",
            torch="2.13.0",
            cuda="13.0",
            flashinfer="0.6.17",
            kernel="0.4.6.post1",
            install_mb=9002,
            locks={"3.11": "41c2adbb", "3.12": "d853b7d4"},
            patches=(_WINDOW, _KEY),
            overrides=_CUDA_TILE,
            known_faults=(_GRAPH_REGISTER, _HICACHE, _FP4_CACHE, _SERVER_INFO),
        ),
        Release(
            version="0.5.19",
            torch="2.13.0",
            cuda="13.0",
            flashinfer="0.6.18",
            kernel="0.4.6.post1",
            install_mb=9014,
            locks={"3.11": "5646a7f7", "3.12": "d30acff9"},
            patches=(_WINDOW, _KEY),
            overrides=_CUDA_TILE,
            known_faults=(_GRAPH_REGISTER, _HICACHE, _FP4_CACHE, _SERVER_INFO),
        ),
        Release(
            version="0.5.20",
            torch="2.13.0",
            cuda="13.0",
            flashinfer="0.6.18",
            kernel="0.4.7",
            install_mb=9074,
            locks={"3.11": "9000c082", "3.12": "050b03db"},
            patches=(_WINDOW, _KEY),
            overrides=_CUDA_TILE,
            known_faults=(_GRAPH_REGISTER, _HICACHE, _FP4_CACHE, _SERVER_INFO),
        ),
        Release(
            version="0.5.21",
            torch="2.13.0",
            cuda="13.0",
            flashinfer="0.6.18",
            kernel="0.4.7",
            install_mb=8962,
            locks={"3.11": "9ceed421", "3.12": "e7458461"},
            patches=(_WINDOW, _KEY),
            overrides=_CUDA_TILE,
            known_faults=(_GRAPH_REGISTER, _SERVER_INFO),
        ),
        Release(
            version="0.5.22",
            torch="2.14.1",
            cuda="13.0",
            flashinfer="0.7.1",
            kernel="0.4.9",
            install_mb=10244,
            locks={"3.11": "38f49050", "3.12": "2859b902"},
            patches=(_WINDOW, _KEY),
            overrides=_CUDA_TILE,
            known_faults=(_GRAPH_REGISTER, _SERVER_INFO),
        ),
        Release(
            version="0.5.23",
            torch="2.14.1",
            cuda="13.0",
            flashinfer="0.7.2",
            kernel="0.4.10",
            install_mb=10028,
            locks={"3.11": "03f2feca", "3.12": "b6767582", "3.13": "d3b51c3b"},
            patches=(_WINDOW, _KEY),
            excludes=_NO_OUTLINES,
            known_faults=(_OUTLINES, _SERVER_INFO),
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


def mixed_toolkit(pins: Mapping[str, str], cuda: str) -> list[Finding]:
    """Judge whether all CUDA toolkit wheels of a lock (distribution -> version) are of the minor version ``cuda``.

    nvcc refuses headers of another minor version, and no resolver sees that (flashinfer-ai/flashinfer#3493).
    """
    strange = [
        f"{name} {pins[name]}" for name in TOOLKIT_PARTS if name in pins and ".".join(pins[name].split(".")[:2]) != cuda
    ]
    if not strange:
        return []
    return [
        Finding(
            "release.mixed_toolkit",
            "error",
            f"The wheels of CUDA are to be of {cuda}, and there are {', '.join(strange)}",
            f"Constrain them to the wheels of TOOLKITS[{cuda!r}] and make the lock again",
            "flashinfer-ai/flashinfer#3493",
        )
    ]
