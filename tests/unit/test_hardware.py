# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The types of a reading: what JSON makes of them comes back."""

from __future__ import annotations

import json

import pytest
import recorded
from ansible_collections.inference.sglang.plugins.module_utils.gpus import Process
from ansible_collections.inference.sglang.plugins.module_utils.hardware import (
    Bridge,
    CudaTree,
    Driver,
    GpuState,
    Hardware,
    Kernel,
    Memory,
    Xid,
)
from ansible_collections.inference.sglang.plugins.module_utils.node import Space

GPU = GpuState(
    address="0000:01:00.0",
    index=0,
    nvlinks=(17, 18),
    fabric=("Completed", "Success"),
    bridges=(Bridge(address="0000:00:01.1", acs=("ReqRedir",)), Bridge(address="0000:00:00.1")),
    processes=(Process(41, "python3", 5, "a.service", "/a"),),
)
FULL = Hardware(
    driver=Driver(version="580.95.05", held=("libnccl2",), packages={"libnccl2": "2"}, kernels={"6.8": True}),
    gpus=(GPU, GpuState(address="0000:21:00.0")),
    links={(0, 1): "NODE", (0, 10): "SYS"},
    peers={(0, 1): ("OK", "CNS")},
    kernel=Kernel(iommu="translated"),
    memory=Memory(memlock=8 << 20),
    xids=(Xid(address="0000:01:00.0", code=79, times=2, message="lost"),),
    cuda_trees=(CudaTree(path="/usr/local/cuda", target="/usr/local/cuda-13.0", found=("PATH", "folder")),),
    spaces={"/opt": Space("/opt", "/", "8:1", 7)},
)


@pytest.mark.parametrize("read", [FULL, Hardware(), Hardware(xids=()), Hardware(gpus=(GPU,))])
def test_a_reading_comes_back_from_json(read: Hardware) -> None:
    assert Hardware.from_dict(json.loads(json.dumps(read.to_dict()))) == read
    assert Hardware.from_dict(read.to_dict()) == read


def test_what_a_recording_leaves_out_has_its_default() -> None:
    read = Hardware.from_dict({"gpus": [{"address": "0000:01:00.0", "bridges": [{"address": "0000:00:01.1"}]}]})
    assert read == Hardware(gpus=(GpuState(address="0000:01:00.0", bridges=(Bridge(address="0000:00:01.1"),)),))
    assert Hardware.from_dict({"cuda_trees": [{"path": "/a", "target": "/a"}], "driver": {"version": "1"}}) == Hardware(
        cuda_trees=(CudaTree(path="/a", target="/a"),), driver=Driver(version="1")
    )


def test_what_a_machine_returned_is_all_understood() -> None:
    facts = json.loads((recorded.DATA / "hardware/two_h200_one_busy.json").read_text())
    read = Hardware.from_dict(facts)
    assert json.loads(json.dumps(read.to_dict())) == facts
    assert [(gpu.utilization, len(gpu.processes)) for gpu in read.gpus] == [(0, 0), (100, 1)]
    assert (read.links, read.peers) == ({(0, 1): "NV18"}, {(0, 1): ("OK", "OK")})
