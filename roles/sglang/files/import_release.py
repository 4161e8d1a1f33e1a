# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Import a release in its own interpreter and report what is really there, as one line of JSON.

Needs no GPU and no driver: it imports what a start imports before it looks for a device.
"""

import argparse
import ctypes
import importlib.metadata
import json
import logging
import re
import sysconfig
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import flashinfer
import torch
import transformers.models.llama.modeling_llama as llama
import xgrammar
from sglang.srt.server_args import ServerArgs

# Of the distribution, not of a wheel: what the release's libraries link to.
SYSTEM_LIBRARIES = ("libnuma.so.1",)


def loads(library):
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
ServerArgs.add_cli_args(parser)
header = Path(sysconfig.get_paths()["include"]) / "Python.h"

print(
    json.dumps(
        {
            "torch_cuda": torch.version.cuda,
            # As plugins/module_utils/flag_sources.py takes them.
            "flags": [
                {
                    "names": action.option_strings,
                    "nargs": action.nargs,
                    "type": getattr(action.type, "__name__", "str"),
                    "choices": None if action.choices is None else list(action.choices),
                    "default": None if action.default == argparse.SUPPRESS else action.default,
                    "refused": getattr(action, "error_message", None) or "",
                    "hidden": action.help == argparse.SUPPRESS,
                }
                for action in parser._actions
            ],
            # Of the base interpreter, also in a virtual environment.
            "header": str(header),
            "header_exists": header.exists(),
            "missing_libraries": [library for library in SYSTEM_LIBRARIES if not loads(library)],
            "imported": [module.__name__ for module in (flashinfer, torch, llama, xgrammar)],
            "versions": {
                re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower(): distribution.version
                for distribution in importlib.metadata.distributions()
            },
        },
        default=str,
    )
)
