"""The encoding of a text file is found, or refused before anything is read; a wrong guess is the worst."""

import io

import pytest

from memagent_lib.documents.converters.encodings import (
    Encoding,
    UnknownEncoding,
    decoded,
    find_encoding,
)

LEASE = "The lease was signed in March by the tenant, {}, who pays 1200 a month for the room. "


def read(data: bytes, label: str | None = None) -> tuple[str, Encoding]:
    encoding = find_encoding(io.BytesIO(data), label)
    return "".join(decoded(io.BytesIO(data), encoding.codec)), encoding


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("灯塔的守卫叫欧多。", "gbk"),  # jawah/charset_normalizer#365: read as Korean
        ("𠮷野家在灯塔旁边。灯塔的守卫叫欧多。他住在海边的小屋里。", "gb18030"),  # jawah/charset_normalizer#605
        ("燈塔的守衛叫歐多。他住在海邊的小屋裡，每天晚上點燈。", "big5"),
        ("灯台の番人はオドといいます。彼は海辺の小屋に住んでいます。", "shift_jis"),
        ("灯台の番人はオドといいます。彼は海辺の小屋に住んでいます。", "euc_jp"),
        ("灯台の番人はオドといいます。", "iso2022_jp"),
        ("등대지기의 이름은 오도입니다. 그는 바닷가 오두막에 삽니다.", "euc_kr"),
        ("Всеки човек има право на образование. Паролата е 4711.", "cp1251"),
        ("Смотрителя маяка зовут Одо. Он живёт у моря.", "koi8_r"),
        ("Ο φύλακας του φάρου λέγεται Όντο", "cp1253"),
        ("שומר המגדלור נקרא אודו", "cp1255"),
        ("حارس المنارة اسمه أودو", "cp1256"),
        ("Der Leuchtturmwärter heißt Müller. Er wohnt über der Straße und zahlt später.", "latin-1"),
        # jawah/charset_normalizer#371: French was read as cp1257
        (
            "Le propriétaire de l'appartement a signé le bail à Genève où il habitait déjà. Le loyer s'élève à 1200 €, "
            "chauffage inclus, payable dès le début du mois. Après la fête, le garçon français a été très content.",
            "cp1252",
        ),
        ("Hyresgästen på Åsögatan betalar 1200 kronor. Båten är röd och ligger vid ön.", "cp1252"),
        ("A bérlő havonta ezer forintot fizet. Árvíztűrő tükörfúrógép, nagyon szép őszi idő.", "cp1250"),
        ("It’s 5 % – paid by Odo", "cp1252"),
        ("The rent is 1200 euro, signed by Odo.", "utf-16-le"),  # without its mark
        ("The rent is 1200 euro, signed by Odo.", "utf-16-be"),
        ("Zażółć gęślą jaźń", "utf-16"),
        ("Zażółć gęślą jaźń", "utf-8-sig"),
        ("🗹 Zażółć gęślą jaźń", "utf-8"),
        ("", "utf-8"),
    ],
)
def test_an_encoding_is_found_by_the_text(text, encoding):
    found, known = read(text.encode(encoding))
    assert (found.removeprefix("\ufeff"), known.invalid) == (text, 0)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Señor Núñez pays 1200 €", "cp1252"),
        ("prix 12 € œuvre", "iso8859-15"),
        ("Señor Núñez pays “1200” €", "mac_roman"),
        ("Müller zahlt für die Straße äußerst spät, schöne Grüße", "mac_roman"),
        ("Le café est fermé à l'été", "cp850"),
        ("Müller zahlt 5 £ für die Straße", "cp437"),
        ("L'affitto è di 1200 euro. Perché non è più così? La città è già là, e può essere più bella.", "cp1252"),
        (LEASE.format("Łukasz Żak of Łódź"), "cp1250"),
        (LEASE.format("Jiří Dvořák of Kroměříž"), "cp1250"),
        (LEASE.format("Güneş Işık of İstanbul"), "cp1254"),
        (LEASE.format("Öner Çağlar"), "cp1254"),
        (LEASE.format("Jūratė"), "cp1257"),
        ("Смотритель маяка платит тысячу рублей в месяц.", "cp866"),
        ("Café one.\n", "utf-8 + latin-1"),
    ],
)
def test_an_uncertain_encoding_is_refused_not_guessed(text, encoding):
    data = text.encode() + text.encode("latin-1") if "+" in encoding else text.encode(encoding)
    with pytest.raises(UnknownEncoding, match=r"^not UTF-8 \(\d+ invalid bytes\), and its encoding is uncertain"):
        find_encoding(io.BytesIO(data))


def test_one_bad_byte_in_utf8_is_one_replaced_character():
    # jawah/charset_normalizer#516: a page that is nearly all UTF-8 was read as another encoding whole
    data = "Müller zahlt 1200 Euro für die Straße. ".encode() + b"\xff" + " Ende, Grüße".encode()
    assert read(data) == ("Müller zahlt 1200 Euro für die Straße. \ufffd Ende, Grüße", Encoding("utf-8", 1))


@pytest.mark.parametrize("text", ["Grüße von Odo ü", "The rent is 1200 €"])
def test_a_file_cut_inside_its_last_character_is_utf8(text):
    assert read(text.encode()[:-1]) == (text[:-1] + "\ufffd", Encoding("utf-8", 1))


@pytest.mark.parametrize(("encoding", "codec"), [("utf-8", "utf-8"), ("cp1252", "cp1252")])
def test_a_character_far_into_the_file_decides(encoding, codec):
    # microsoft/markitdown#1505: 'ascii' codec can't decode byte 0xc3, for only the beginning was looked at
    text = "plain ascii line\n" * 20_000 + "Zoë pays"
    assert read(text.encode(encoding)) == (text, Encoding(codec))


@pytest.mark.parametrize(
    ("data", "label", "text"),
    [
        ("Señor €".encode(), "iso-8859-1", "Señor €"),  # crewAIInc/crewAI#7467: UTF-8 declared as Latin-1
        ("Señor €".encode("cp1252"), "iso-8859-1", "Señor €"),
        ("朱镕基先生".encode("gbk"), "gb2312", "朱镕基先生"),
        ("①㈱".encode("cp932"), "shift_jis", "①㈱"),
        (b"The rent is 1200", "bogus", "The rent is 1200"),  # NousResearch/hermes-agent#55383: LookupError
        ("대지기 A".encode("iso2022_kr"), "iso-2022-kr", "대지기 A"),
        ("Müller zahlt für die Straße".encode() + b"\xff", "iso-8859-1", "Müller zahlt für die Straße\ufffd"),
        (b"\x81\x8d", "utf-8", "\ufffd\ufffd"),
        (b"caf\xe9", "base64", "café"),  # codecs of Python's that are no encodings of text
        (b"caf\xe9", "idna", "café"),
        (b"caf\xe9", "a\0b", "café"),
    ],
)
def test_a_label_counts_although_labels_lie(data, label, text):
    assert read(data, label)[0] == text
