"""Recognise the text of scanned pages if the user requests it: pypdfium2 renders them, tesseract reads them.

Both are optional; if one is missing, the error gives the command that installs it.
"""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memagent_lib.documents.converters.converted import Source
from memagent_lib.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

# tesseract's documentation recommends 300 dots per inch; a PDF point is 1/72 inch.
DOTS_PER_POINT = 300 / 72
PAGE_TIMEOUT_S = 120


class MissingTool(UserError, RuntimeError):
    """A program or library that an option needs is not installed. The message gives the command that installs it."""


def require_ocr(language: str) -> None:
    """Raise :class:`MissingTool` unless pypdfium2 and tesseract are installed and tesseract knows ``language``."""
    need = "text recognition (OCR) needs"
    try:
        import pypdfium2  # noqa: F401
    except ImportError:
        raise MissingTool(f"{need} pypdfium2, which is not installed; pip install pypdfium2") from None
    if not shutil.which("tesseract"):
        raise MissingTool(f"{need} tesseract, which is not installed; apt install tesseract-ocr")
    command = ["tesseract", "--list-langs"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=PAGE_TIMEOUT_S, check=False)
    languages = set((listed.stdout + listed.stderr).split())
    missing = [name for name in language.split("+") if name not in languages]
    if missing:
        package = f"tesseract-ocr-{missing[0].replace('_', '-')}"
        raise MissingTool(f"{need} the language {missing[0]!r}, which tesseract has not; apt install {package}")


def recognise_pages(source: Source, numbers: Sequence[int], language: str) -> dict[int, str]:
    """Return the recognised text of the pages ``numbers`` of a PDF, by page number, counted from 1.

    Pages that cannot be rendered or recognised, or in which no text is found, are left out.
    """
    if not numbers:
        return {}
    require_ocr(language)
    import pypdfium2

    texts = {}
    with source.open() as stream:
        try:
            document = pypdfium2.PdfDocument(stream)
        except pypdfium2.PdfiumError:
            return {}
        for number in numbers:
            try:
                picture = document[number - 1].render(scale=DOTS_PER_POINT).to_pil()
            except (pypdfium2.PdfiumError, IndexError):
                continue
            texts[number] = _recognise(picture, language)
        document.close()
    return {number: text for number, text in texts.items() if text}


def _recognise(picture: Image, language: str) -> str:
    image = io.BytesIO()
    picture.save(image, "png")
    command = ["tesseract", "stdin", "stdout", "-l", language]
    try:
        done = subprocess.run(command, input=image.getvalue(), capture_output=True, timeout=PAGE_TIMEOUT_S, check=True)
    # One bad page must not cost the others; a page without text is reported as such.
    except (subprocess.SubprocessError, OSError):
        return ""
    return done.stdout.decode("utf-8", errors="replace").strip()
