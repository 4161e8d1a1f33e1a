# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""check_launch.py MODEL_FOLDER FLAG…: would SGLang start? Runs as the service user, in the unit's environment.

Looks for the programs that compile kernels, reads the model's files as that user, gives the flags to the release's own
parser without abbreviations, and lets the release judge them together. Nothing is loaded. Exit 0, or 1 with one line a
fault.
"""

import argparse
import logging
import os
import pwd
import shutil
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

model, flags = Path(sys.argv[1]), sys.argv[2:]
user = pwd.getpwuid(os.getuid()).pw_name

# FlashInfer and Triton call them by these names, and only when a kernel is first needed.
programs = {
    "ninja": ["ninja"],
    "nvcc": ["nvcc"],
    "a C++ compiler": [os.environ.get("CXX") or "c++"],
    "a C compiler": [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"],
}
absent = [what for what, names in programs.items() if not any(map(shutil.which, names))]
for what in absent:
    print(f"{what} is not reachable from the unit, whose PATH is {os.environ.get('PATH')}: leave PATH to the plan")
if absent:
    sys.exit(1)

unreadable = []
for path in (model, *model.rglob("*")):
    mode = os.R_OK | (os.X_OK if path.is_dir() else 0)
    if not os.access(path, mode):
        unreadable.append(path)
if unreadable:
    for path in unreadable[:5]:
        print(f"{user} cannot read {path}: give it read access (for a folder also x), or name another folder")
    sys.exit(1)
if not (model / "config.json").is_file():
    sys.exit(f"{model} holds no config.json: name the folder that holds the model itself")

from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import ServerArgs

load_plugins()  # as the server does first: they may add choices


class Parser(argparse.ArgumentParser):
    def error(self, message):
        print(f"{message}: correct sglang_server_flags")
        sys.exit(1)


parser = Parser(allow_abbrev=False)
ServerArgs.add_cli_args(parser)
try:
    if "--config" in flags:  # as prepare_server_args does, in a module that moved in 0.5.19
        try:
            from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger
        except ImportError:
            from sglang.srt.server_args_config_parser import ConfigArgumentMerger
        flags = ConfigArgumentMerger(parser).merge_config_with_args(flags)
    arguments = parser.parse_args(flags)
    wanted = ServerArgs.from_cli_args(arguments)
    if hasattr(wanted, "resolve_once"):
        wanted.resolve_once()  # from 0.5.19 on; before, the constructor does it
    wanted.check_server_args()
except Exception as error:
    print(f"{type(error).__name__}: {error}: correct sglang_server_flags")
    sys.exit(1)
