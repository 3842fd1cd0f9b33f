"""The bench of reading: its arithmetic by hand, and every measure once, very small, on a real engine."""

import json
from dataclasses import replace

import pytest

from experiments.studies.speed.__main__ import made, main
from experiments.studies.speed.material import orders, prose
from experiments.studies.speed.read import MEASURES, ReadBench, bench_read
from experiments.studies.speed.results import Measured, Ratio, alternating, paired, table, write_json

SMALL = ReadBench(
    chunk_tokens=64, chunks=2, group=3, concurrent=3, rounds=1, engine_lengths=(300,), lengths=(500, 1000),
    huge_mb=1, huge_seconds=1, full_lengths=(128, 256, 1024), width=64, layers=1,
)  # fmt: skip


def test_ratios_are_paired_by_round_and_judged_by_their_median():
    rows = [
        {"round": r, "who": who, "s": s}
        for r, pair in enumerate([(9, 3), (8, 4), (5, 1)])
        for who, s in zip("ab", pair, strict=True)
    ]
    ratios = paired(rows, "who", "a", "b", "s")
    assert ratios == (3, 2, 5)
    met = Ratio("m", "w", ratios, at_least=3)
    missed = Ratio("m", "w", ratios, at_most=2.5)
    unbounded = Ratio("m", "w", ratios)
    assert (met.value, met.met, missed.met, unbounded.met) == (3, True, False, None)
    assert met.row() == {
        "measure": "m",
        "what": "w",
        "measured": "3.00 [2.00, 5.00]",
        "n": "3",
        "target": "≥ 3",
        "": "met",
    }
    assert "missed" in table([missed])


def test_both_orders_have_the_same_words():
    places = {
        name: template.read.index("{chunk}") < template.read.index("{memory}") for name, template in orders().items()
    }
    assert places["chunk_first"] and not places["memory_first"]
    assert sorted(orders()["memory_first"].read.split("\n")) == sorted(orders()["chunk_first"].read.split("\n"))


def test_prose_is_a_function_of_its_seed():
    assert next(prose(1)) == next(prose(1)) != next(prose(2))


@pytest.mark.slow
def test_every_measure_runs_and_is_written_to_a_file(tokenizer, tmp_path):
    pytest.importorskip("vllm")
    tokenizer.hf.save_pretrained(tmp_path / "tokenizer")
    found = bench_read(replace(SMALL, model=str(tmp_path / "tokenizer")), report=lambda line: None)
    assert list(found) == list(MEASURES)
    sides = {row["order"]: row["prefilled_with_memory"] for row in found["order"].rows if row["memories"] == "full"}
    assert sides["chunk_first"] < sides["memory_first"]
    assert {row["turns"] for row in found["lock_step"].rows} == {found["lock_step"].rows[0]["turns"]}
    record = json.loads(write_json(tmp_path / "b.json", SMALL, found).read_text())
    assert record["settings"]["chunk_tokens"] == 64
    assert all(ratio["rounds"] for measure in record["measures"].values() for ratio in measure["ratios"])


def test_an_unknown_measure_is_refused_with_the_choices():
    with pytest.raises(ValueError, match="no measure speed; choose from order, overhead"):
        ReadBench(measures=("speed",))
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        ReadBench(rounds=0)
    assert Measured([]).note == ""


def test_the_command_lists_its_benches_and_refuses_wrong_sizes(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert all(f"    {name} " in printed for name in ("data", "read", "sweep"))
    assert main(["read", "speed=1"]) == 2
    assert capsys.readouterr().err.startswith("bench read: the bench has no key speed; it has chunk_tokens, ")
    assert main(["train", "verl=False"]) == 2
    assert "verl must be a valid boolean, got 'False'" in capsys.readouterr().err
    assert main(["read", "--measure", "speed"]) == 2
    assert "no measure speed; choose from order, overhead" in capsys.readouterr().err
    assert made(ReadBench, ["lengths=[500, 1000]", "rounds=1"]) == ReadBench(lengths=(500, 1000), rounds=1)


def test_the_command_prints_a_table_and_writes_every_row(monkeypatch, capsys, tmp_path):
    measured = Measured([Ratio("data", "naive over ours", (2.5,), at_least=2)], [{"generator": "ours"}], "a note")
    monkeypatch.setattr("experiments.studies.speed.data.bench_data", lambda settings, report: {"data": measured})
    assert main(["data", "n=3", "task=vt", "--out", str(tmp_path / "new" / "b.json")]) == 0
    printed = capsys.readouterr().out
    assert "met" in printed and "data: a note" in printed
    record = json.loads((tmp_path / "new" / "b.json").read_text())
    assert (record["settings"]["n"], record["settings"]["task"]) == (3, "vt")
    assert record["measures"]["data"]["rows"] == [{"generator": "ours"}]


def test_sides_take_turns_in_being_first():
    assert [list(alternating({"a": 1, "b": 2}, round_)) for round_ in range(3)] == [["a", "b"], ["b", "a"], ["a", "b"]]
