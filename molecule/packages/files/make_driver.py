#!/usr/bin/env python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""make_driver.py FOLDER VERSION...: small packages named as those of NVIDIA's driver, in a folder."""

import subprocess
import sys
import tempfile
from pathlib import Path

UNIT = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
# It writes down what it is asked, and answers for one card.
SMI = '#!/bin/sh\necho "$*" >> /run/nvidia-smi\ncase "$*" in *default_limit*) echo "0, 600.00";; esac\n'


def build(folder: str, name: str, version: str, depends: str = "", files: dict[str, str] | None = None) -> None:
    fields = {
        "Package": name,
        "Version": f"{version}-1",
        "Architecture": "all",
        "Maintainer": "nobody <nobody@example.invalid>",
        "Description": "for a test",
    }
    fields |= {"Depends": depends} if depends else {}
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        texts = {"DEBIAN/control": "".join(f"{key}: {value}\n" for key, value in fields.items()), **(files or {})}
        for path, text in texts.items():
            file = Path(root, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755 if text.startswith("#!") else 0o644)
        argv = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", root, folder]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


folder, *versions = sys.argv[1:]
for version in versions:
    exact = f"(= {version}-1)"
    build(folder, "libcuda1", version)
    build(folder, "nvidia-kernel-open-dkms", version)
    unit = {"lib/systemd/system/nvidia-persistenced.service": UNIT}
    build(folder, "nvidia-persistenced", version, files=unit)
    needs = f"libcuda1 {exact}, nvidia-persistenced {exact}"
    build(folder, "nvidia-driver-cuda", version, needs, {"usr/bin/nvidia-smi": SMI})
