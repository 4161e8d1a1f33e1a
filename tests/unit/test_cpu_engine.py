# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The platform plug-in's own decisions; SGLang itself meets it in the molecule scenarios."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

PLUGIN = Path(__file__).resolve().parents[2] / "roles/cpu_engine/files/plugin/sglang_cpu_engine/__init__.py"
VARIABLE = "SGLANG_CPU_OMP_THREADS_BIND"


@pytest.fixture
def plugin(monkeypatch):
    """The plug-in beside a release of SGLang, and a PyTorch that sees a GPU or none."""
    monkeypatch.delenv(VARIABLE, raising=False)

    def load(sglang: str, gpu: bool = False):
        found = importlib.util.spec_from_file_location("sglang_cpu_engine", PLUGIN)
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        monkeypatch.setattr(module, "version", lambda _name: sglang)
        torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: gpu))
        monkeypatch.setitem(sys.modules, "torch", torch)
        return module

    yield load
    os.environ.pop(VARIABLE, None)


def test_it_declines_where_a_gpu_is(plugin):
    assert plugin("0.5.23", gpu=True).activate() is None
    assert VARIABLE not in os.environ


@pytest.mark.parametrize(("sglang", "bound"), [("0.5.12.post1", False), ("0.5.18", False), ("0.5.19", True)])
def test_ranks_share_the_cores_where_sglang_counts_stages(plugin, sglang, bound):
    assert plugin(sglang).activate() == "sglang_cpu_engine.platform.CpuEngine"
    assert (VARIABLE in os.environ) is bound


def test_what_the_user_binds_stays(plugin, monkeypatch):
    monkeypatch.setenv(VARIABLE, "0|1")
    plugin("0.5.23").activate()
    assert os.environ[VARIABLE] == "0|1"
