#!/usr/bin/env python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""make_repository.py CUDA_HOME FOLDER: packages with the names and dependencies of NVIDIA's, in a signed repository.

FOLDER/served        the repository; its Release is signed by the first key
FOLDER/distribution  packages that are no part of it
FOLDER/keys.json     name of each key to its text and fingerprint
FOLDER/sign          signs it anew: sign KEY
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

# Kernels are compiled without these, which are half of the toolkit.
LEFT_OUT = shutil.ignore_patterns("libcublasLt.so*", "*.alt.so*")

# NVIDIA's packages turn /usr/local/cuda to the last one that was installed.
ALTERNATIVE = """#!/bin/sh
set -e
update-alternatives --install /usr/local/cuda cuda /usr/local/cuda-13.0 130
"""
NO_ALTERNATIVE = """#!/bin/sh
set -e
[ "$1" != remove ] || update-alternatives --remove cuda /usr/local/cuda-13.0
"""

# (folder, name, version, fields)
PACKAGES = (
    ("served", "cuda-toolkit-13-0", "13.0.1-1", {"Depends": "cuda-nvcc-13-0, cuda-toolkit-13-0-config-common"}),
    ("served", "cuda-toolkit-13-0", "13.0.2-1", {"Depends": "cuda-nvcc-13-0, cuda-toolkit-13-0-config-common"}),
    ("served", "cuda-toolkit-13-1", "13.1.0-1", {}),
    ("served", "cuda-13-0", "13.0.2-1", {"Depends": "cuda-runtime-13-0, cuda-toolkit-13-0"}),
    ("served", "cuda-runtime-13-0", "13.0.2-1", {"Depends": "cuda-drivers (>= 580)"}),
    ("served", "cuda-drivers", "580.95.05-1", {"Depends": "nvidia-driver"}),
    ("served", "nvidia-driver", "580.95.05-1", {"Conflicts": "nvidia-driver-580-open"}),
    # What a dependency of any package may do one day.
    ("served", "cuda-gdb-13-0", "13.0.85-1", {"Depends": "nvidia-driver"}),
    ("distribution", "nvidia-driver-580-open", "580.95.05-1", {}),
)


def build(folder: Path, name: str, version: str, root: Path, **fields: str) -> None:
    control = {
        "Package": name,
        "Version": version,
        "Architecture": "all",
        "Maintainer": "nobody <nobody@example.invalid>",
        "Description": "for a test",
        **fields,
    }
    (root / "DEBIAN").mkdir(parents=True, exist_ok=True)
    (root / "DEBIAN" / "control").write_text("".join(f"{key}: {value}\n" for key, value in control.items()))
    folder.mkdir(parents=True, exist_ok=True)
    run("dpkg-deb", "--root-owner-group", "-Znone", "--build", root, folder)


def run(*argv: object, **options: object) -> str:
    return subprocess.run(list(map(str, argv)), check=True, stdout=subprocess.PIPE, text=True, **options).stdout


cuda_home, folder = map(Path, sys.argv[1:])
os.umask(0o022)
for place, name, version, fields in PACKAGES:
    build(folder / place, name, version, folder / "roots" / f"{name}-{version}", **fields)

root = folder / "roots" / "config"
(root / "DEBIAN").mkdir(parents=True)
for script, text in (("postinst", ALTERNATIVE), ("prerm", NO_ALTERNATIVE)):
    (root / "DEBIAN" / script).write_text(text)
    (root / "DEBIAN" / script).chmod(0o755)
build(folder / "served", "cuda-toolkit-13-0-config-common", "13.0.96-1", root)

root = folder / "roots" / "nvcc"
(root / "usr" / "local").mkdir(parents=True)
shutil.copytree(cuda_home, root / "usr/local/cuda-13.0", symlinks=True, ignore=LEFT_OUT, copy_function=os.link)
build(folder / "served", "cuda-nvcc-13-0", "13.0.88-1", root, Architecture="amd64")
shutil.rmtree(folder / "roots")

home = folder / "gnupg"
home.mkdir(mode=0o700)
gpg = ("gpg", "--homedir", home, "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", "")
keys = {}
for name in ("first", "second"):
    run(*gpg, "--quick-generate-key", f"{name} <{name}@example.invalid>", "rsa3072", "sign", "never")
    listed = run(*gpg, "--with-colons", "--list-keys", f"{name}@example.invalid").splitlines()
    fingerprint = next(line.split(":")[9] for line in listed if line.startswith("fpr:"))
    keys[name] = {"key": run(*gpg, "--armor", "--export", fingerprint), "fingerprint": fingerprint}
(folder / "keys.json").write_text(json.dumps(keys))

(folder / "sign").write_text(f"""#!/bin/sh
# sign KEY: read the packages that are served now, and sign what is told of them
set -e
cd {folder}/served
rm -f InRelease Release Release.gpg
apt-ftparchive --db ../hashes packages . > Packages
apt-ftparchive -o APT::FTPArchive::Release::Origin=NVIDIA \\
    -o 'APT::FTPArchive::Release::Label=NVIDIA CUDA' release . > ../Release
mv ../Release Release
gpg --homedir {home} --batch --quiet --pinentry-mode loopback --passphrase '' \\
    --local-user "$1@example.invalid" --clearsign --output InRelease Release
""")
(folder / "sign").chmod(0o755)
run(folder / "sign", "first")
run("gpgconf", "--homedir", home, "--kill", "all")
