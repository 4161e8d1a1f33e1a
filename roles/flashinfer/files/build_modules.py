# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compile FlashInfer modules ahead of the first request and print their libraries as one line of JSON.

Runs in the release's own interpreter and in the unit's environment: the toolkit is CUDA_HOME, the architectures are
FLASHINFER_CUDA_ARCH_LIST, the cache is FLASHINFER_WORKSPACE_BASE. Nothing is downloaded and no GPU is needed.
"""

import json
import sys

import flashinfer
from flashinfer.jit.norm import gen_norm_module

GENERATORS = {"norm": gen_norm_module}

unknown = sorted(set(sys.argv[1:]) - set(GENERATORS))
if unknown:
    sys.exit(f"Unknown modules: {', '.join(unknown)}. Known: {', '.join(sorted(GENERATORS))}")

libraries = {}
for name in sys.argv[1:]:
    specification = GENERATORS[name]()
    specification.build(verbose=False)
    libraries[name] = str(specification.get_library_path())
print(json.dumps({"version": flashinfer.__version__, "libraries": libraries}))
