"""A user's own records as tables: CSV, TSV, spreadsheets and parquet give what JSON lines give."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from document_files import xlsx

from memagent_lib.cli.main import main
from memagent_lib.data import load, read_original
from memagent_lib.data.formats import likely_format


def read(path, content, **options):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [
        (example.question, example.document, example.answers) for example in read_original(path, "plain", **options)
    ]


def cells(*rows) -> str:
    """The rows of a sheet, of texts and numbers, as an .xlsx has them."""

    def cell(value) -> str:
        is_number = isinstance(value, float)
        return f"<c><v>{value}</v></c>" if is_number else f'<c t="inlineStr"><is><t>{value}</t></is></c>'

    return "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)


def test_csv_keeps_texts_quotes_and_line_breaks(tmp_path):
    # docling#4097: the mark of UTF-8 is no part of the first name; 00123 is a text
    content = (
        '\ufeffquestion,document,answers\n"Who, then?","Odo paid\n""1,200"".",00123\n\nWhere?,Here.,"[""a"", ""b""]"\n'
    )
    first = ("Who, then?", 'Odo paid\n"1,200".', ("00123",))
    assert read(tmp_path / "x.csv", content) == [first, ("Where?", "Here.", ("a", "b"))]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", "question;context;answer\n\nWho?;Odo, he paid.;Odo\n"),
        ("x.csv", "sep=;\r\nquestion;context;answer\r\nWho?;Odo, he paid.;Odo\r\n"),
        ("x.tsv", "question\tcontext\tanswer\nWho?\tOdo, he paid.\tOdo\n"),
        ("x.csv", "question\tcontext\tanswer\nWho?\tOdo, he paid.\tOdo\n".encode("utf-16")),
    ],
)
def test_delimiters_and_marks_of_office_programs_are_found(name, content, tmp_path):
    assert read(tmp_path / name, content) == [("Who?", "Odo, he paid.", ("Odo",))]
    assert likely_format(tmp_path / name) == "plain"


def test_a_column_may_be_called_like_a_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("question,document,2024\nWho?,Odo paid.,Odo\n")
    assert main(["data", "--from", "plain", "x.csv", "answers=2024", "--out", "x.parquet"]) == 0
    assert [example.answers for example in load("x.parquet")] == [("Odo",)]


@pytest.mark.parametrize(
    ("cell", "document"),
    [
        ("""['Odo paid.\\nHe left.', "It's late."]""", "Odo paid.\nHe left.\n\nIt's late."),
        ("""['Odo paid.'\n 'He left.']""", "Odo paid.\n\nHe left."),  # as NumPy prints
        ('["Odo paid.", "He left."]', "Odo paid.\n\nHe left."),
        ("['Odo] paid.", "['Odo] paid."),
        ("[Scene one] Odo paid. [Exit]", "[Scene one] Odo paid. [Exit]"),
        ('["Odo", 7]', '["Odo", 7]'),
    ],
)
def test_a_list_of_passages_survives_a_csv_file(cell, document, tmp_path):
    quoted = cell.replace('"', '""')
    ((_, found, _),) = read(tmp_path / "x.csv", f'user_input,retrieved_contexts,reference\nWho?,"{quoted}",Odo\n')
    assert found == document


def test_a_document_of_a_csv_file_has_any_length(tmp_path):
    document = "Odo paid. " * 20_000  # Python's own limit is 131,072 characters
    ((_, found, _),) = read(tmp_path / "x.csv", f"question,document,answer\nWho?,{document},Odo\n")
    assert found == document


def test_a_spreadsheet_gives_the_rows_of_its_one_filled_sheet(tmp_path):
    path = tmp_path / "x.xlsx"
    rows = cells(["question", "document", "answer"], ["How many?", "Three.", 3.0], ["How much?", "Little.", 0.5])
    right = [("How many?", "Three.", ("3",)), ("How much?", "Little.", ("0.5",))]
    assert read(path, xlsx(rows)) == right
    assert likely_format(path) == "plain"
    two = xlsx(rows, hidden="notes")
    assert read(path, two, sheet="Rent") == right
    with pytest.raises(ValueError, match="has several sheets: Rent, Secret; choose one with sheet=NAME"):
        read(path, two)
    with pytest.raises(ValueError, match="has no sheet 'New'; choose from Rent, Secret"):
        read(path, two, sheet="New")
    with pytest.raises(ValueError, match="is empty"):
        read(path, xlsx(""))


def test_whole_numbers_of_a_spreadsheet_have_no_decimals(tmp_path):
    path = tmp_path / "x.xlsx"
    path.write_bytes(xlsx(cells(["id", "question", "document", 2024.0], [7.0, "How many?", "Three.", 3.0])))
    (example,) = read_original(path, "plain", answers="2024")
    assert (example.id, example.answers) == ("7", ("3",))


def test_parquet_with_structured_answers_is_read(tmp_path):
    rows = [{"question": "Who?", "context": "Odo paid.", "answers": {"text": ["Odo"], "answer_start": [0]}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    (example,) = read_original(tmp_path / "x.parquet", "plain")
    assert (example.document, example.answers) == ("Odo paid.", ("Odo",))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "question,document,answer\nq,d,a\nq,d, and more,a\n", "line 3: 4 cells, and the first row names 3"),
        ("x.csv", "question,document,answer\nq,d\n", "line 2: 2 cells, and the first row names 3 columns"),
        ("x.csv", 'question,document,answer\nq,"d,a\n', "line 2: not as in a CSV file"),
        ("x.csv", "question,document,answer,answer\nq,d,a,b\n", "line 1: .* answer comes twice"),
        ("x.csv", "question,document,answer\nq,,a\n", r"line 2: missing field 'document' \(it is null\)"),
        ("x.csv", "question,document,answer\n", "found a table without a row below its names"),
        ("x.csv", "", "found a table without a row"),
        ("x.csv", "question,document,answer\nq,caf\xe9,a\n".encode("latin-1"), "line 2: byte 0xe9 at offset 30 is not"),
        ("x.xlsx", "PK\x03\x04 and no more", "no spreadsheet that can be read"),
    ],
)
def test_a_broken_table_is_an_error_with_its_line(name, content, message, tmp_path):
    with pytest.raises(ValueError, match=f"{name}.*{message}"):
        read(tmp_path / name, content)


def test_a_cell_that_excel_has_cut_is_refused(tmp_path):
    path = tmp_path / "x.xlsx"
    content = xlsx(cells(["question", "document", "answer"], ["q", "d" * 32_767, "a"]))
    with pytest.raises(ValueError, match="row 2: a cell has 32,767 characters, as many as Excel keeps"):
        read(path, content)


def test_another_formats_reader_names_the_table(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("question,document,answer\nq,d,a\n")
    with pytest.raises(ValueError, match=r"expected RULER's .*it looks like your own records .*: --from plain"):
        list(read_original(path, "ruler"))
