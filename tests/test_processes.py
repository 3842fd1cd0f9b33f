"""Processes: what lives, what has ended, and what is left behind."""

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest
from waiting import has_ended, wait_for

from memagent_lib.processes import Terminated, is_gone, terminable, this_process

GRANDCHILD = """
import subprocess, sys
sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(sleeper.pid, flush=True)
"""


def test_orphans_of_a_dead_child_are_found_and_ended():
    code = f"""
import subprocess, sys
from memagent_lib.processes import adopt_orphans, end_descendants
adopt_orphans()
child = subprocess.Popen([sys.executable, "-c", {GRANDCHILD!r}], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline().strip(), flush=True)
child.wait()
print(end_descendants())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    pid, ended = done.stdout.split()
    assert ended == "1"
    assert not psutil.pid_exists(int(pid))


def test_a_process_is_gone_when_it_ended_or_its_pid_was_reused():
    here = this_process()
    assert not is_gone(here)
    code = "from memagent_lib.processes import this_process; print(this_process())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert ended.rsplit(" ", 2)[0] == here.rsplit(" ", 2)[0] and is_gone(ended)
    host, pid, start = here.rsplit(" ", 2)
    assert is_gone(f"{host} {pid} {int(start) - 3600}"), "another process had this pid an hour ago"
    assert not is_gone(f"elsewhere {pid} 1")


def test_a_child_dies_with_its_parent():
    child = "import os, time; from memagent_lib.processes import die_with_parent; die_with_parent(os.getppid()); "
    child += "print('ready', flush=True); time.sleep(600)"
    parent = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, timeout=60, check=True)
    with contextlib.suppress(psutil.NoSuchProcess):
        child_process = psutil.Process(int(done.stdout))
        wait_for(lambda: has_ended(child_process))


def test_a_request_to_end_closes_what_is_open():
    before = signal.getsignal(signal.SIGTERM)

    def waits() -> None:
        with terminable():
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()

    with pytest.raises(Terminated):
        waits()
    assert signal.getsignal(signal.SIGTERM) is before
