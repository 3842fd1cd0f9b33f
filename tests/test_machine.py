"""What a processor multiplies in hardware, from the names that Linux gives its instructions."""

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


def test_a_container_has_at_most_its_limit(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "CONTAINER_LIMIT", limit)
    limit.write_text("max\n", encoding="ascii")
    whole = machine.machine_bytes()
    limit.write_text("1048576\n", encoding="ascii")
    assert (machine.machine_bytes(), machine.free_bytes()) == (1048576, 1048576)
    assert whole > 1048576
