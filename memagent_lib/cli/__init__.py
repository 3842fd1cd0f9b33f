"""The command line: one module per verb. Knows every room; nothing knows it."""

from memagent_lib.cli.main import main, parser

__all__ = ["main", "parser"]
