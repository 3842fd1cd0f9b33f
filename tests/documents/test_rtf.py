"""RTF is read with its headers, footers, comments, text boxes and numbers, all of which striprtf drops."""

import pytest

from memagent_lib.documents.converters import Piece, Source, convert


def converted(data: bytes) -> tuple[str, list[str]]:
    found = convert(Source.memory("a.rtf", data))
    return "".join(piece.text for piece in found.pieces), list(found.notes)


def test_headers_and_footers_of_rtf_are_read_once():
    # erdomke/RtfPipe#22
    fonts = rb"{\fonttbl{\f0\fcharset204 Arial;}{\f1\fcharset0 Arial;}}"
    around = rb"{\header\pard\plain \f0\'cf\'f0\par Case 4711\par}{\headerl \pard\f0\'cf\'f0\par}"
    footer = rb"{\footerf \f1 Page {\field{\*\fldinst PAGE}{\fldrslt 1}}\par}"
    data = rb"{\rtf1\ansi\ansicpg1252\deff1" + fonts + rb"\headery720" + around + footer + rb"\pard\f1 Se\'f1or\par}"
    assert list(convert(Source.memory("a.rtf", data)).pieces) == [
        Piece("Пр\n", "header"),
        Piece("Case 4711\n", "header"),
        Piece("Señor\n"),
        Piece("Page 1\n", "footer"),
    ]


def test_blank_lines_before_rtf_do_not_make_it_text():
    assert converted(b"\r\n \n{\\rtf1\\mac Se\\'96or}") == ("Señor\n", [])


def test_a_header_of_rtf_is_in_the_code_page_of_its_file():
    assert converted(rb"{\rtf1\mac {\header Se\'96or}x}") == ("Señor\nx\n", [])


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        (
            rb"Due{\*\atnid OB}{\*\atnauthor Odo Blau}\chatn {\*\annotation{\*\atnref 0}\pard {\chatn }too high} now",
            "Due [comment: too high] now\n",
        ),
        (rb"Due{\footnote\pard plus heat\par} now", "Due [footnote: plus heat] now\n"),
        (
            rb"A{\shp{\*\shpinst\shpleft1{\sp{\sn a}{\sv 1}}{\shptxt \pard In the box\par}}{\shprslt{\*\do box}}} end",
            "A [text box: In the box] end\n",
        ),
        (
            rb"{\shpgrp{\*\shpinst{\shp{\*\shpinst{\shptxt A}}}{\shp{\*\shpinst{\shptxt B}}}}}",
            " [text box: A] [text box: B]\n",
        ),
        (rb"{\pntext\f0 1.\tab}{\*\pn\pnlvlbody{\pntxta.}}Rent", "1.\tRent\n"),
        (rb"{\listtext 1.\tab}{\pntext 1.\tab}Rent", "1.\tRent\n"),
    ],
)
def test_text_in_groups_that_striprtf_drops_is_read(markup, text):
    assert converted(rb"{\rtf1\ansi " + markup + b"}") == (text, [])


def test_equations_of_rtf_are_noted():
    equation = rb"{\mmath{\*\moMathPara{\*\moMath{\mr x=1}}}}"
    assert converted(rb"{\rtf1\ansi Let " + equation + b"}") == ("Let \n", ["1 equation left out from a.rtf"])


def test_rtf_that_is_cut_off_in_many_headers_is_read():
    assert converted(rb"{\rtf1\ansi seen" + rb"{\header " * 20_000 + b"Case 4711}") == ("Case 4711\nseen\n", [])


@pytest.mark.parametrize(
    ("markup", "text", "notes"),
    [
        (rb"a \{\v x\} b\par {c} d", "a {x} b\nc d\n", []),
        (rb"a \\{\v x} b", "a \\ b\n", ["1 hidden passage left out from a.rtf"]),
        (rb"a \{{\v x}\} b", "a {} b\n", ["1 hidden passage left out from a.rtf"]),
    ],
    ids=["a brace of the text", "a backslash of the text", "a group between braces"],
)
def test_a_brace_of_the_text_begins_no_hidden_group(markup, text, notes):
    assert converted(rb"{\rtf1\ansi " + markup + b"}") == (text, notes)
