"""A run stops on request, in its first second too, and on demand together with the process that started it."""

import signal
import subprocess
import sys

import pytest

from memagent_lib.rl.run.training_run import TrainingRun
from memagent_lib.rl.run_folder import RunFolder, TrainingState, TrainingStatus

SUPERVISOR = """
import os, sys, time
from pathlib import Path
from memagent_lib.rl.run_folder import RunFolder, TrainingState, TrainingStatus

folder = RunFolder(Path(sys.argv[1]))
lock = folder.lock()
folder.write_status(TrainingStatus(state=TrainingState.STARTING, steps=9))
print("started", flush=True)
while not folder.stop_request.exists():
    time.sleep(0.1)
folder.write_status(TrainingStatus(state=TrainingState.RUNNING, steps=9, pid=os.getpid()))
folder.write_status(TrainingStatus(state=TrainingState.STOPPED, step=1, steps=9))
"""

OWNER = """
import signal, sys
from pathlib import Path
from memagent_lib.rl.run.training_run import TrainingRun
from memagent_lib.rl.run_folder import RunFolder

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is born deaf to it
TrainingRun(RunFolder(Path(sys.argv[1]))).stop_at_exit()
print("ready", flush=True)
signal.pause()
"""


WATCHER = """
import sys
from pathlib import Path
from memagent_lib.rl import RunFolder, TrainingRun
from memagent_lib import panel

print("ready", flush=True)
panel.watch(TrainingRun(RunFolder(Path(sys.argv[1]))), stop_on_interrupt=True)
"""


@pytest.fixture
def starting(tmp_path):
    """A run whose supervisor has not written its pid yet."""
    process = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "started\n"
    yield RunFolder(tmp_path)
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_starting_run_is_stopped_as_soon_as_it_can_be(starting: RunFolder) -> None:
    assert starting.status() == TrainingStatus(state=TrainingState.STARTING, steps=9)
    assert TrainingRun(starting).stop().state is TrainingState.STOPPED


def test_a_run_can_end_with_the_process_that_begins_it(starting: RunFolder) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(starting.path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert owner.stdout.readline() == "ready\n"
    assert not starting.status().state.over
    owner.send_signal(signal.SIGINT)
    try:
        owner.wait(60)
    finally:
        owner.kill()
        owner.stdout.close()
    assert starting.status().state is TrainingState.STOPPED


def test_a_scheduler_that_ends_the_command_stops_its_run_too(starting: RunFolder) -> None:
    watcher = subprocess.Popen([sys.executable, "-c", WATCHER, str(starting.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert watcher.stdout.readline() == "ready\n"
        assert watcher.stdout.readline().startswith(("starting", "running"))  # it watches
        watcher.send_signal(signal.SIGTERM)
        assert watcher.wait(60) == 143
    finally:
        watcher.kill()
        watcher.stdout.close()
    assert starting.status().state is TrainingState.STOPPED
