#!/usr/bin/env python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""probe.py URL OUTPUT: ask an engine twice a second, and note the time whenever it begins or ceases to answer."""

import sys
import time
import urllib.request

direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
last = None
with open(sys.argv[2], "a", encoding="ascii", buffering=1) as output:
    while True:
        try:
            with direct.open(f"{sys.argv[1]}/v1/models", timeout=20):
                answers = "answers"
        except OSError:
            answers = "silent"
        if answers != last:
            print(time.time(), answers, file=output)
            last = answers
        time.sleep(0.5)
