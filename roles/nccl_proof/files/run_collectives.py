# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""run_collectives.py BACKEND NUMBER: one long-lived rank, on the GPU of that number where BACKEND is nccl.

Reads requests from standard input and answers each with one line, both JSON. Libraries print to standard error.

{"do": "start"}                                           versions and device
{"do": "join", "store": FILE, "rank": R, "ranks": N}      be rank R of N from now on, which meet in FILE
{"do": "check", "collective": NAME, "size": BYTES}        how many elements came out wrong
{"do": "measure", "collective": NAME, "size": BYTES, "repeats": N}    seconds that one takes, N times
{"do": "leave"}                                           be no rank any more

Collectives: all_reduce, and send_recv, in which every rank sends to the next and receives from the one before it.
"""

import ctypes
import datetime
import json
import math
import os
import signal
import sys
import time

# What started it may be killed, and a rank that waits for its GPU would not see that its standard input ended.
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

# NCCL and Gloo print to standard output.
answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
os.dup2(2, 1)

import torch
from torch import distributed

BACKEND, NUMBER = sys.argv[1], int(sys.argv[2])
GPU = BACKEND == "nccl"
DEVICE = torch.device("cuda", NUMBER) if GPU else torch.device("cpu")

# Only what started it knows how long it may take.
NO_LIMIT = datetime.timedelta(days=1)

# One measurement takes about so long, and so many operations at most.
SECONDS, MOST = 0.2, 20


def synchronize():
    if GPU:
        torch.cuda.synchronize()


def start():
    if GPU:
        torch.cuda.set_device(DEVICE)
        torch.zeros(1, device=DEVICE)
    return {
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if GPU else "",
        "device": torch.cuda.get_device_name(DEVICE) if GPU else "cpu",
    }


def join(store, rank, ranks):
    distributed.init_process_group(
        BACKEND,
        store=distributed.FileStore(store, ranks),
        rank=rank,
        world_size=ranks,
        timeout=NO_LIMIT,
        # The communicator is made here and now, one for collectives and for send and receive.
        device_id=DEVICE if GPU else None,
    )
    return {}


def leave():
    distributed.destroy_process_group()
    return {}


def pattern(size, rank):
    """Whole numbers that float32 adds exactly, others for each rank."""
    return (torch.arange(size // 4, dtype=torch.int32, device=DEVICE) % 1009 + 7 * rank).to(torch.float32)


def send_recv(outgoing, incoming):
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    sends = distributed.P2POp(distributed.isend, outgoing, (rank + 1) % ranks)
    receives = distributed.P2POp(distributed.irecv, incoming, (rank - 1) % ranks)
    for work in distributed.batch_isend_irecv([sends, receives]):
        work.wait()


def check(collective, size):
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    if collective == "all_reduce":
        found = pattern(size, rank)
        distributed.all_reduce(found)
        right = ranks * pattern(size, 0) + 7 * sum(range(ranks))
    else:
        found = torch.zeros(size // 4, device=DEVICE)
        send_recv(pattern(size, rank), found)
        right = pattern(size, (rank - 1) % ranks)
    synchronize()
    return {"wrong": int((found != right).sum())}


def measure(collective, size, repeats):
    # Sums of zeros stay zeros, however often.
    outgoing, incoming = torch.zeros(size // 4, device=DEVICE), torch.zeros(size // 4, device=DEVICE)

    def seconds(times):
        meet()
        begin = time.perf_counter()
        for _time in range(times):
            if collective == "all_reduce":
                distributed.all_reduce(outgoing)
            else:
                send_recv(outgoing, incoming)
        synchronize()
        return (time.perf_counter() - begin) / times

    seconds(2)
    # All ranks must repeat it equally often.
    once = torch.tensor([seconds(1)], device=DEVICE)
    distributed.all_reduce(once, op=distributed.ReduceOp.MAX)
    times = min(max(1, math.ceil(SECONDS / float(once))), MOST)
    return {"seconds": [seconds(times) for _repeat in range(repeats)], "times": times}


def meet():
    distributed.all_reduce(torch.zeros(1, device=DEVICE))
    synchronize()


CALLS = {"start": start, "join": join, "check": check, "measure": measure, "leave": leave}

for line in sys.stdin:
    request = json.loads(line)
    try:
        answer = CALLS[request.pop("do")](**request)
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"}
    print(json.dumps(answer), file=answers)
