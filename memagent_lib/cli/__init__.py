"""The command line: one module per verb. Knows every room; no room knows it."""

from memagent_lib.cli.main import main, parser

__all__ = ["main", "parser"]
