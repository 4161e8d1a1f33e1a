#!/usr/bin/env python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""list_files.py OUTPUT: every file of the node with mode, owner, size and time, but what the system itself writes."""

import os
import sys

# Logs, and what Ansible and ssh leave for any task whatever.
LEFT_OUT = ("/dev", "/proc", "/run", "/sys", "/tmp", "/var/lib/systemd", "/var/log", "/var/tmp")  # noqa: S108

# Other nodes of this machine write into the shared wheel cache, not this one.
SHARED = ("/opt/sglang",)

with open(sys.argv[1], "w", encoding="utf-8", errors="surrogateescape") as output:
    for folder, folders, files in os.walk("/"):
        kept = (name for name in folders if os.path.join(folder, name) not in LEFT_OUT + SHARED)
        folders[:] = sorted(name for name in kept if name != ".ansible")
        for name in sorted(files + folders):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            # The time of a folder changes with what is left out below it.
            time = "" if name in folders else status.st_mtime_ns
            size = "" if name in folders else status.st_size
            print(path, oct(status.st_mode), status.st_uid, size, time, file=output)
