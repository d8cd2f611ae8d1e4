"""Runs the rest of its command line as a child with all its open files, and outlives a child that is killed.

The launcher watches this process, and the connection to it stays open, so it does not see the child die.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

OUTLIVES_S = 20  # longer than the tests wait for the other ranks to end

for descriptor in map(int, os.listdir("/proc/self/fd")):
    try:
        os.set_inheritable(descriptor, True)
    except OSError:
        continue
child = subprocess.run([sys.executable, *sys.argv[1:]], close_fds=False)
if child.returncode < 0:
    time.sleep(OUTLIVES_S)
sys.exit(1 if child.returncode else 0)
