"""What a processor multiplies in hardware, and how much memory and how many cores a process may use."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from memagent_lib import machine

AVX2 = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu sse4_2 avx avx2 f16c\nbugs\t\t: none\n"
AVX512 = "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16\n\n" * 2
AMX = "processor\t: 0\nflags\t\t: avx512f avx512_bf16 avx512_fp16 amx_bf16 amx_tile\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd asimdhp i8mm bf16 sve\n"
OLDER_ARM = "processor\t: 0\nFeatures\t: fp asimd crc32\n"


@pytest.mark.parametrize(
    ("cpuinfo", "bfloat16", "float16"),
    [
        (AVX2, False, False),
        (AVX512, True, False),
        (AMX, True, True),
        (ARM, True, True),
        (OLDER_ARM, False, False),
        ("", False, False),
    ],
    ids=["AVX2", "AVX512-BF16", "AMX", "ARM", "older ARM", "empty"],
)
def test_half_types_count_where_the_processor_has_them(cpuinfo, bfloat16, float16, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(cpuinfo, encoding="utf-8")
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    assert machine.multiplies("bfloat16") is bfloat16
    assert machine.multiplies("float16") is float16
    assert machine.multiplies("float32") is True


def test_without_cpuinfo_half_types_count_as_emulated(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "none")
    assert not machine.multiplies("bfloat16")
    assert machine.multiplies("float32")


GB = 10**9
V2_STAT = f"anon {2 * GB}\ninactive_file {GB}\nactive_file 4096"
DOCKER = ("0::/", {"memory.max": 8 * GB, "memory.current": 3 * GB, "memory.stat": V2_STAT, "cpu.max": "150000 100000"})
SLURM = (  # the scheduler limits the job, and the task inside it has no limit of its own
    "0::/system.slice/slurmstepd.scope/job_7/step_0/task_0",
    {
        "system.slice/slurmstepd.scope/job_7/memory.max": 8 * GB,
        "system.slice/slurmstepd.scope/job_7/memory.current": 2 * GB,
        "system.slice/slurmstepd.scope/job_7/step_0/memory.max": "max",
        "system.slice/slurmstepd.scope/job_7/step_0/task_0/memory.max": "max",
        "system.slice/slurmstepd.scope/job_7/step_0/task_0/cpu.max": "max 100000",
        "system.slice/slurmstepd.scope/job_7/cpu.max": "200000 100000",
    },
)
VERSION_1 = (  # a container that sees its path outside, which its own mounts do not have
    "5:memory:/docker/1f2e\n4:cpu,cpuacct:/docker/1f2e\n1:name=systemd:/docker/1f2e",
    {
        "memory/memory.limit_in_bytes": 8 * GB,
        "memory/memory.usage_in_bytes": 3 * GB,
        "memory/memory.stat": f"cache {GB}\ntotal_inactive_file {GB}",
        "cpu/cpu.cfs_quota_us": 200000,
        "cpu/cpu.cfs_period_us": 100000,
    },
)
NO_LIMIT = (
    "4:memory:/\n3:cpu:/",
    {"memory/memory.limit_in_bytes": 9223372036854771712, "cpu/cpu.cfs_quota_us": -1, "cpu/cpu.cfs_period_us": 100000},
)


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Mapping[str, object]], None]:
    """Give the process control groups: the lines of /proc/self/cgroup and the files of the file system."""

    def write(own: str, files: Mapping[str, object]) -> None:
        for name, content in files.items():
            file = tmp_path / "cgroup" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{content}\n", encoding="ascii")
        (tmp_path / "own").write_text(own + "\n", encoding="ascii")
        monkeypatch.setattr(machine, "CONTROL_GROUPS", tmp_path / "cgroup")
        monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "own")
        monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)
        memory = SimpleNamespace(total=512 * GB, available=500 * GB)
        monkeypatch.setattr("psutil.virtual_memory", lambda: memory)

    return write


@pytest.mark.parametrize("own", [DOCKER, SLURM, VERSION_1], ids=["Docker", "Slurm", "version 1"])
def test_a_limited_process_has_what_its_groups_have(own, groups):
    groups(*own)
    assert (machine.machine_bytes(), machine.free_bytes(), machine.cores()) == (8 * GB, 6 * GB, 2)


@pytest.mark.parametrize("own", [NO_LIMIT, ("0::/", {}), ("", {})], ids=["no limit", "no files", "no groups"])
def test_without_a_limit_a_process_has_the_machine(own, groups):
    groups(*own)
    assert (machine.machine_bytes(), machine.free_bytes(), machine.cores()) == (512 * GB, 500 * GB, 64)


def test_a_process_over_its_limit_has_nothing_free(groups):
    groups("0::/", {"memory.max": GB, "memory.current": 2 * GB})
    assert machine.free_bytes() == 0
