"""Text recognition of scanned pages, where the user requests it: pypdfium2 draws them, tesseract reads them.

Both are optional; what is missing is an error with the line that installs it.
"""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Sequence

from memagent_lib.documents.converters.converted import Source, Unreadable

DOTS_PER_POINT = 300 / 72
PAGE_TIMEOUT_S = 120


def require_ocr(language: str) -> None:
    """Raise :class:`Unreadable` unless tesseract is installed and knows ``language``, and pypdfium2 is there."""
    try:
        import pypdfium2  # noqa: F401
    except ImportError:
        raise Unreadable(
            "to be recognised by pypdfium2, which is not installed; pip install 'memagent-lib[ocr]'"
        ) from None
    if not shutil.which("tesseract"):
        raise Unreadable("to be recognised by tesseract, which is not installed; apt install tesseract-ocr")
    listed = subprocess.run(["tesseract", "--list-langs"], capture_output=True, text=True, timeout=PAGE_TIMEOUT_S)
    languages = set((listed.stdout + listed.stderr).split())
    missing = [name for name in language.split("+") if name not in languages]
    if missing:
        raise Unreadable(
            f"to be recognised in {missing[0]!r}, which tesseract has not; apt install tesseract-ocr-{missing[0]}"
        )


def recognise_pages(source: Source, numbers: Sequence[int], language: str) -> dict[int, str]:
    """The text of these pages (from 1) of a PDF, by number; those on which nothing is recognised are left out."""
    if not numbers:
        return {}
    require_ocr(language)
    import pypdfium2

    texts = {}
    with source.open() as stream:
        document = pypdfium2.PdfDocument(stream)
        for number in numbers:
            picture = io.BytesIO()
            document[number - 1].render(scale=DOTS_PER_POINT).to_pil().save(picture, "png")
            texts[number] = _recognise(picture.getvalue(), language)
        document.close()
    return {number: text for number, text in texts.items() if text.strip()}


def _recognise(picture: bytes, language: str) -> str:
    command = ["tesseract", "stdin", "stdout", "-l", language]
    try:
        done = subprocess.run(command, input=picture, capture_output=True, timeout=PAGE_TIMEOUT_S, check=True)
    except (subprocess.SubprocessError, OSError):
        return ""
    return done.stdout.decode("utf-8", errors="replace").strip()
