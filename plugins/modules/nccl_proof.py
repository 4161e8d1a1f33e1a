#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_proof
short_description: Prove that an instance's GPUs can talk to each other, within a limit of time
description:
  - As the service user and with NCCL's variables of the plan, runs all_reduce and send and receive between every pair
    of the instance's GPUs, then between all of them, checks what arrives, and measures how fast.
  - A collective that hangs is ended at its limit, with every process of it, and told with what it likely comes from.
  - What was proven is recorded under a digest of cards, links, driver, libraries and NCCL's variables. Where a good
    record of these lies there, nothing is run.
  - Nothing is run either while any process holds one of these GPUs or the instance starts, for an instance on one GPU,
    nor where the plan names GPUs otherwise than by number.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
attributes:
  idempotent:
    support: partial
    details: With O(force) it runs, and writes the record, each time.
options:
  plan:
    description: The plan, from M(inference.sglang.serving_plan).
    type: dict
    required: true
  records:
    description: Folder of the records.
    type: path
    required: true
  rank_script:
    description: Python source of one rank.
    type: str
    required: true
  backend:
    description: V(nccl) between GPUs, V(gloo) between two processes on a node without; V(auto) by what the node has.
    type: str
    choices: [auto, nccl, gloo]
    default: auto
  timeout:
    description: Seconds that everything may take.
    type: int
    default: 300
  step_timeout:
    description: Seconds that one collective may take.
    type: int
    default: 30
  sizes:
    description:
      - Bytes that are sent and checked; the largest is measured.
      - Where it is not set, 64 KiB and 256 MiB between GPUs, 64 KiB and 4 MiB elsewhere.
    type: list
    elements: int
  repeats:
    description: How often each collective is measured; the median counts.
    type: int
    default: 5
  nccl_tests:
    description:
      - Folder of C(all_reduce_perf) and C(sendrecv_perf) of NVIDIA's nccl-tests, which run in the place of
        O(rank_script) where there are both. Where it is not set, the PATH is looked through for such that start.
    type: path
  force:
    description: Run even where a good record lies there.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Prove that the GPUs can talk to each other
  inference.sglang.nccl_proof:
    plan: "{{ plan }}"
    records: /opt/sglang/proofs/nccl
    rank_script: "{{ lookup('ansible.builtin.file', 'run_collectives.py') }}"
"""

RETURN = r"""
ran:
  description: Whether it was run, or would be in check mode.
  returned: always
  type: bool
record:
  description: The record's file; it need not exist. Empty where there is nothing to prove.
  returned: always
  type: str
  sample: /opt/sglang/proofs/nccl/0a1b2c3d4e5f6071.json
log:
  description: What the programs printed, kept where something went wrong.
  returned: always
  type: str
seconds:
  description: How long the recorded proof took; null without one.
  returned: always
  type: float
groups:
  description:
    - What was recorded, by the GPUs of a group (C(0-1)), with the C(link) of a pair and NCCL's C(transport).
    - Of each collective its C(outcome), C(bytes), C(gb_per_second) of bus bandwidth as nccl-tests define it, and the
      C(range) of that.
  returned: always
  type: dict
  sample: {"0-1": {"link": "NV18", "all_reduce": {"outcome": "passed", "gb_per_second": 295.9}}}
findings:
  description: What is wrong or worth knowing.
  returned: always
  type: list
  elements: dict
  contains:
    id:
      description: Stable name, C(room.fault).
      type: str
      returned: always
      sample: collectives.hung
    severity:
      description: C(error), C(warning) or C(info).
      type: str
      returned: always
      sample: error
    seen:
      description: What was read.
      type: str
      returned: always
    remedy:
      description: What to do.
      type: str
      returned: always
    source:
      description: Where the judgement comes from; may be empty.
      type: str
      returned: always
"""

import contextlib
import datetime
import json
import os
import pwd
import resource
import shutil
import tempfile
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import (
    collectives,
    health,
    proving,
    ranks,
    readings,
    wheels,
)
from ansible_collections.inference.sglang.plugins.module_utils.findings import as_dicts, as_text, errors
from ansible_collections.inference.sglang.plugins.module_utils.hardware import Hardware
from ansible_collections.inference.sglang.plugins.module_utils.plan import DIGEST_VARIABLE, as_user
from ansible_collections.inference.sglang.plugins.module_utils.units import SEARCH_PATH

SIZES = {"nccl": [64 << 10, 256 << 20], "gloo": [64 << 10, 4 << 20]}

# Without a GPU there are as many.
PROCESSES = 2

# Not where TMPDIR says: with pam_tmpdir that is a folder of root alone, and the ranks are the service user's.
TEMPORARY = "/tmp"  # noqa: S108 # made by mkdtemp


def versions(plan: dict) -> dict[str, str]:
    """Of the release, what collectives depend on; empty where no complete release lies there."""
    manifest = wheels.read_manifest(plan["release_path"]) or {}
    found = manifest.get("versions", {})
    return {name: found[name] for name in sorted(found) if name == "torch" or name.startswith("nvidia-nccl")}


def programs(module: AnsibleModule, given: dict[str, str], logs: Path) -> dict[str, Path]:
    """nccl-tests by collective; empty unless all are there. Those that nobody named must start: others may be built
    for an MPI or a CUDA that is not there, which says nothing of the GPUs.
    """
    folder = module.params["nccl_tests"]
    found = {}
    for collective, name in proving.PROGRAMS.items():
        path = shutil.which(name, path=folder) if folder else module.get_bin_path(name)
        usage = [*bound(module.params["plan"]), str(path), "-h"]
        if path and (folder or ranks.bounded(usage, given, 10, logs / name).status == 0):
            found[collective] = Path(path)
    return found if len(found) == len(proving.PROGRAMS) else {}


def bound(plan: dict) -> list[str]:
    """What runs a program as the service user that must not outlive this one, as the rank script does not."""
    return [*as_user(plan["user"]), "--pdeathsig", "KILL"]


def environment(plan: dict, backend: str, chosen: list[int]) -> dict[str, str]:
    """What systemd gives a unit of its own, the unit's, and what is to be seen of NCCL. ``chosen``: ranks to GPUs."""
    given = {"LANG": "C.UTF-8", "PATH": SEARCH_PATH, "USER": plan["user"], "LOGNAME": plan["user"]}
    given |= {name: str(value) for name, value in plan["environment"].items()}
    # A process that has it counts as the instance's.
    given.pop(DIGEST_VARIABLE, None)
    if backend == "gloo":
        # Gloo looks for the address of the node's name, which may be any.
        return given | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    for name in ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"):
        given.pop(name, None)
    # CUDA's own order is another one where cards differ.
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, chosen))}
    return given | {"NCCL_DEBUG": "INFO"} | order


class Work:
    """One proof: where its files lie while it runs, and what it leaves."""

    def __init__(self, module: AnsibleModule, backend: str, chosen: list[int], sizes: list[int]) -> None:
        self.module = module
        self.plan = module.params["plan"]
        self.backend = backend
        self.chosen = chosen
        self.sizes = sizes
        self.left: list[int] = []

    def run(self, folder: Path) -> list[collectives.Run]:
        """Prove it. Raises OSError where nothing can be started."""
        folder.chmod(0o711)
        parameters = self.module.params
        clock = proving.Clock(parameters["timeout"])
        if self.backend == "nccl":
            given = self._of_tests()
            if tests := programs(self.module, given, folder):
                return self._by_tests(tests, given, folder, clock)
        stores = folder / "stores"
        stores.mkdir(mode=0o700)
        shutil.chown(stores, self.plan["user"])
        script = folder / "run_collectives.py"
        script.write_text(parameters["rank_script"], encoding="utf-8")
        script.chmod(0o644)
        command = [*as_user(self.plan["user"]), self.plan["command"][0], str(script), self.backend]
        given = environment(self.plan, self.backend, self.chosen)
        with ranks.Ranks(command, len(self.chosen), given, folder) as started:
            prover = proving.Prover(
                started, stores, self.sizes, parameters["repeats"], parameters["step_timeout"], clock
            )
            runs = prover.prove()
        self.left = started.left
        return list(collectives.renamed(runs, self.chosen))

    def _of_tests(self) -> dict[str, str]:
        """The environment of nccl-tests, which are to use the NCCL that the release uses."""
        given = environment(self.plan, self.backend, self.chosen)
        libraries = [
            str(path) for path in Path(self.plan["release_path"]).glob("lib/python*/site-packages/nvidia/nccl/lib")
        ]
        given["LD_LIBRARY_PATH"] = ":".join([*libraries, *filter(None, [given.get("LD_LIBRARY_PATH")])])
        return given

    def _by_tests(
        self, tests: dict[str, Path], given: dict[str, str], folder: Path, clock: proving.Clock
    ) -> list[collectives.Run]:
        runs, self.left = proving.prove_by_tests(
            programs=tests,
            ranks=self.chosen,
            size=max(self.sizes),
            environment=given,
            prefix=bound(self.plan),
            limits=(self.module.params["step_timeout"], clock),
            logs=folder,
        )
        return runs


def running_unit(instance: str) -> str:
    """The instance's unit where systemd runs it, starts it, or is about to; else empty."""
    try:
        state = health.unit_state(instance)
    except OSError:  # no systemd
        return ""
    return health.unit_name(instance) if state.active and not state.over else ""


def printed(folder: Path) -> str:
    """What the programs printed, each under its name."""
    logs = sorted(folder.glob("*.log"))
    return "\n".join(f"==> {log.name} <==\n{log.read_text(encoding='utf-8', errors='replace')}" for log in logs)


def prove(module: AnsibleModule, work: Work, hardware: Hardware, log: Path) -> tuple[collectives.Proof, str]:
    """Run it, and leave nothing behind: no process, no segment of shared memory, no file."""
    parameters = module.params
    owner = pwd.getpwnam(work.plan["user"]).pw_uid
    before = ranks.segments()
    with contextlib.suppress(OSError, ValueError):
        # As the unit has it; ssh gives a few megabytes.
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with tempfile.TemporaryDirectory(prefix="nccl_proof-", dir=TEMPORARY) as name:
        if work.backend == "nccl" and (program := module.get_bin_path("nvidia-modprobe")):
            # Makes /dev/nvidia-uvm where nothing else did since the boot, as units do. A broken driver hangs at it.
            log_of_it = Path(name) / "nvidia-modprobe.log"
            ranks.bounded([program, "-u", "-c=0"], {"PATH": SEARCH_PATH}, parameters["step_timeout"], log_of_it)
        runs = work.run(Path(name))
        text = printed(Path(name))
    swept = ranks.sweep(before, owner)
    wrong = any(run.outcome != "passed" for run in runs) or work.left
    return collectives.Proof(
        backend=work.backend,
        ranks=tuple(work.chosen),
        runs=tuple(runs),
        hardware=hardware,
        environment=collectives.nccl_variables(work.plan["environment"]),
        limits=(parameters["step_timeout"], parameters["timeout"]),
        left=tuple(work.left),
        swept=tuple(swept),
        log=str(log) if wrong else "",
    ), text


def main():
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict", "required": True},
            "records": {"type": "path", "required": True},
            "rank_script": {"type": "str", "required": True},
            "backend": {"type": "str", "choices": ["auto", "nccl", "gloo"], "default": "auto"},
            "timeout": {"type": "int", "default": 300},
            "step_timeout": {"type": "int", "default": 30},
            "sizes": {"type": "list", "elements": "int"},
            "repeats": {"type": "int", "default": 5},
            "nccl_tests": {"type": "path"},
            "force": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    parameters = module.params
    plan = parameters["plan"]
    hardware = Hardware() if parameters["backend"] == "gloo" else readings.read()
    there = [state.index for state in hardware.gpus if state.index is not None]
    backend = parameters["backend"] if parameters["backend"] != "auto" else ("nccl" if there else "gloo")
    chosen = collectives.chosen(plan, sorted(there)) if backend == "nccl" else list(range(PROCESSES))
    nothing = {"changed": False, "ran": False, "record": "", "log": "", "seconds": None, "groups": {}, "findings": []}
    if chosen is None:
        module.exit_json(**{**nothing, "findings": as_dicts([collectives.unnumbered(plan)])})
    if len(chosen) < 2:
        module.exit_json(**nothing)

    sizes = parameters["sizes"] or SIZES[backend]
    identity = collectives.identity(
        backend=backend,
        ranks=chosen,
        versions=versions(plan),
        environment=collectives.nccl_variables(plan["environment"]),
        hardware=hardware,
        sizes=sizes,
    )
    record = Path(parameters["records"]) / f"{collectives.digest(identity)}.json"
    log = record.with_suffix(".log")
    known = collectives.read_record(record)
    last = {
        **nothing,
        "record": str(record),
        "log": str(log) if log.exists() else "",
        "seconds": known.get("seconds"),
        "groups": known.get("groups", {}),
        "findings": known.get("findings", []),
    }
    if known.get("passed") and not parameters["force"]:
        module.exit_json(**last)
    gpus, unit = (chosen, running_unit(plan["name"])) if backend == "nccl" else ((), "")
    if held := collectives.held(hardware, gpus, known, unit):
        module.exit_json(**{**last, "findings": as_dicts([held])})
    if module.check_mode:
        module.exit_json(**{**last, "changed": True, "ran": True})
    if not identity["versions"]:
        module.fail_json(msg=f"No complete release lies in {plan['release_path']}: run the sglang role first")

    os.umask(0o022)  # whatever it is for root
    begin = time.monotonic()
    try:
        proof, text = prove(module, Work(module, backend, chosen, sizes), hardware, log)
    except (OSError, LookupError) as problem:
        module.fail_json(msg=f"The proof could not be started: {problem}")
    seconds = round(time.monotonic() - begin, 1)
    findings = collectives.judge(proof)
    stopping = errors(findings)
    if stopping:
        wheels.write_atomically(log, text)
    else:
        log.unlink(missing_ok=True)
    content = {
        "identity": identity,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": seconds,
        "passed": not stopping,
        "groups": collectives.summary(proof),
        "runs": collectives.runs_to_dicts(proof.runs),
        "swept": list(proof.swept),
        "findings": as_dicts(findings),
    }
    wheels.write_atomically(record, json.dumps(content, indent=2) + "\n")
    result = {
        "changed": True,
        "ran": True,
        "record": str(record),
        "log": proof.log,
        "seconds": seconds,
        "groups": content["groups"],
        "findings": content["findings"],
    }
    if stopping:
        module.fail_json(msg=f"{plan['name']} was not touched:\n{as_text(findings)}", **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
