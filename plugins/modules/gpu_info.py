#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Report a node's GPUs, their driver and links, and what of kernel, PCI bus and memory they depend on
description:
  - Reads C(nvidia-smi), C(/proc), C(/sys), the kernel's log, dpkg's status and the CUDA toolkits in their usual places,
    in one pass. Judges nothing and changes nothing.
  - Needs nothing but what is on the node. Without a driver, the GPUs are told by the PCI bus alone.
  - Serial numbers and UUIDs are not returned.
  - What may not be read is null. As root it also tells the access control services (ACS) of PCI bridges, and the
    kernel's log wherever that is for root.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes.info
options:
  paths:
    description: Whose free space to report. They need not exist.
    type: list
    elements: path
    default: []
seealso:
  - module: inference.sglang.preflight
  - module: inference.sglang.serving_plan
"""

EXAMPLES = r"""
- name: Read the GPUs and all that they depend on
  inference.sglang.gpu_info:
    paths: [/opt/sglang, /srv/models]
  register: read

- name: Show which GPUs have a narrower link than they could
  ansible.builtin.debug:
    msg: >-
      {{ read.hardware.gpus | rejectattr('pcie_width', 'none')
      | rejectattr('pcie_width', 'eq', 16) | map(attribute='address') }}
"""

RETURN = r"""
hardware:
  description: What the node is. A number that is not known is null, a name that is not known empty.
  returned: success
  type: dict
  contains:
    driver:
      description: The NVIDIA driver, loaded and installed.
      type: dict
      returned: always
      contains:
        version:
          description: Version of the loaded kernel module. Empty where none is loaded.
          type: str
          returned: always
          sample: 580.159.04
        flavour:
          description: C(open) or C(proprietary), of the loaded kernel module.
          type: str
          returned: always
          sample: open
        library:
          description: Version of the C(libcuda) that programs find.
          type: str
          returned: always
          sample: 580.159.04
        cuda:
          description: The newest CUDA version that the driver supports.
          type: str
          returned: always
          sample: "13.0"
        complaint:
          description: What C(nvidia-smi) said or did instead of an answer. Empty where it answered, or is not there.
          type: str
          returned: always
          sample: ""
        persistenced:
          description: Whether C(nvidia-persistenced) runs.
          type: bool
          returned: always
        packages:
          description: Installed Debian packages of driver, its libraries and CUDA, with their versions.
          type: dict
          returned: always
          sample: {"nvidia-open": "580.159.04-1"}
        held:
          description: Those of them that are on hold.
          type: list
          elements: str
          returned: always
        kernels:
          description: Installed kernels, and whether each has a module of the driver.
          type: dict
          returned: always
          sample: {"6.8.0-90-generic": true}
        headers:
          description: Installed kernels, and whether each has its headers.
          type: dict
          returned: always
          sample: {"6.8.0-90-generic": true}
        secure_boot:
          description: Whether Secure Boot is on.
          type: bool
          returned: always
        key_enrolled:
          description: Whether the key that signs DKMS modules is enrolled. Null where there is no such key.
          type: bool
          returned: always
    gpus:
      description: The NVIDIA GPUs on the PCI bus, by address.
      type: list
      elements: dict
      returned: always
      contains:
        address:
          description: PCI address.
          type: str
          returned: always
          sample: "0000:01:00.0"
        device:
          description: PCI device id.
          type: str
          returned: always
          sample: "0x2bb5"
        index:
          description: Number of C(nvidia-smi). Null where that does not tell of this GPU.
          type: int
          returned: always
        product:
          description: Name of C(nvidia-smi).
          type: str
          returned: always
          sample: NVIDIA RTX PRO 6000 Blackwell Server Edition
        architecture:
          description: As C(blackwell), C(hopper), C(ada) or C(ampere). By the device id where there is no driver.
          type: str
          returned: always
          sample: blackwell
        capability:
          description: Compute capability times ten.
          type: int
          returned: always
          sample: 120
        memory:
          description: In bytes.
          type: int
          returned: always
        power_draw:
          description: Watts drawn now.
          type: float
          returned: always
        power_limit:
          description: The limit in force, in watts.
          type: float
          returned: always
        power_default:
          description: The limit after a boot, in watts.
          type: float
          returned: always
        power_min:
          description: The least limit that may be set, in watts.
          type: float
          returned: always
        power_max:
          description: The largest limit that may be set, in watts.
          type: float
          returned: always
        persistence:
          description: Whether persistence mode is on.
          type: bool
          returned: always
        ecc:
          description: Whether ECC is on.
          type: bool
          returned: always
        mig:
          description: Whether the GPU is divided into instances. Null where it cannot be.
          type: bool
          returned: always
        pcie_generation:
          description: Of the link now, which saves power while nothing uses it.
          type: int
          returned: always
        pcie_generation_max:
          description: The most that GPU and slot allow.
          type: int
          returned: always
        pcie_width:
          description: Lanes now.
          type: int
          returned: always
        pcie_width_max:
          description: The most lanes that the GPU allows.
          type: int
          returned: always
        utilization:
          description: In percent.
          type: int
          returned: always
        nvlinks:
          description: How many NVLinks are up, and how many there are.
          type: list
          elements: int
          returned: always
          sample: [18, 18]
        fabric:
          description: State and status of the NVLink fabric. Empty where the GPU belongs to none.
          type: list
          elements: str
          returned: always
          sample: [Completed, Success]
        numa:
          description: NUMA node.
          type: int
          returned: always
        iommu_group:
          description: Number of the IOMMU group. Empty without an IOMMU.
          type: str
          returned: always
        iommu_type:
          description: What the kernel says of the group's domain, as C(identity), C(DMA) or C(DMA-FQ).
          type: str
          returned: always
        bound_to:
          description: The kernel driver that has the device.
          type: str
          returned: always
          sample: nvidia
        bridges:
          description:
            - The PCI bridges above the GPU, nearest first, each with its C(address) and the names of the C(acs) flags
              that are on.
            - C(acs) is empty where the bridge has no such capability, and null where only root may read it.
          type: list
          elements: dict
          returned: always
          sample: [{"address": "0000:00:01.1", "acs": ["SrcValid", "ReqRedir"]}]
        processes:
          description: What computes on it, each with C(pid), C(name), C(memory) in bytes, C(unit) and C(cgroup).
          type: list
          elements: dict
          returned: always
    links:
      description: What connects each pair of GPUs, by C(nvidia-smi topo -m).
      type: dict
      returned: always
      sample: {"0-1": NODE}
    peers:
      description: Whether the GPUs of a pair may read and write one another's memory, by C(nvidia-smi topo -p2p).
      type: dict
      returned: always
      sample: {"0-1": [OK, OK]}
    kernel:
      description: The running kernel.
      type: dict
      returned: always
      contains:
        release:
          description: Its version.
          type: str
          returned: always
          sample: 6.8.0-90-generic
        command_line:
          description: What it was booted with.
          type: str
          returned: always
        iommu:
          description: How the IOMMU treats the GPUs, C(off), C(passthrough) or C(translated).
          type: str
          returned: always
          sample: passthrough
        container:
          description: Kind of container, by systemd's names. Empty for a machine.
          type: str
          returned: always
    memory:
      description: Memory of the node. Sizes are in bytes.
      type: dict
      returned: always
      contains:
        total:
          description: All of it.
          type: int
          returned: always
        available:
          description: What a new process could have.
          type: int
          returned: always
        shm_size:
          description: Size of C(/dev/shm).
          type: int
          returned: always
        shm_free:
          description: What is free there.
          type: int
          returned: always
        memlock:
          description: What systemd lets a service lock that sets no limit. 18446744073709551615 for any amount.
          type: int
          returned: always
        hugepages:
          description: Policy of transparent huge pages.
          type: str
          returned: always
          sample: madvise
        huge_reserved:
          description: What is set aside for huge pages.
          type: int
          returned: always
    xids:
      description:
        - Errors that the driver reported since boot, one entry a GPU and error. Null where the kernel's log cannot be
          read.
        - Each has the GPU's C(address), the error's number as C(code), how many C(times), and the last C(message).
      type: list
      elements: dict
      returned: always
      sample: [{"address": "0000:01:00.0", "code": 79, "times": 2, "message": "GPU has fallen off the bus."}]
    cuda_trees:
      description:
        - CUDA toolkits that a build might find, each with its C(path), the C(target) that this leads to, and versions
          of its C(nvcc) and C(headers).
        - C(found) tells as what, C(folder) for a usual place, C(PATH), C(profile) for a C(PATH) in C(/etc/environment)
          or C(/etc/profile.d), C(CUDA_HOME), C(ld.so.conf).
      type: list
      elements: dict
      returned: always
      sample:
        - path: /usr/local/cuda
          target: /usr/local/cuda-13.0
          found: [folder, ld.so.conf]
          nvcc: "13.0"
          headers: "13.0"
    spaces:
      description: By each of O(paths), the C(mount) that it is or would be on, its C(device) and C(free_bytes).
      type: dict
      returned: always
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import readings

ROOT = Path("/")


def main():
    module = AnsibleModule(
        argument_spec={"paths": {"type": "list", "elements": "path", "default": []}}, supports_check_mode=True
    )
    hardware = readings.read(root=ROOT, paths=module.params["paths"])
    module.exit_json(changed=False, hardware=hardware.to_dict())


if __name__ == "__main__":
    main()
