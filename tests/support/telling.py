"""A plugin: after its fifth step a run runs the command TELL, and goes on once a signal has come.

So what that command signals, and what passes the signal on, never comes too late.
"""

import os
import signal
import socket
import subprocess
from itertools import count

from torch.optim.optimizer import register_optimizer_step_post_hook

steps = count(1)


def tell(*_: object) -> None:
    if next(steps) != 5 or "TELL" not in os.environ or os.environ.get("RANK", "0") != "0":
        return
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno())
    try:
        subprocess.run(os.environ["TELL"], shell=True, check=False)
        ours.recv(1)
    finally:
        signal.set_wakeup_fd(-1)


register_optimizer_step_post_hook(tell)
