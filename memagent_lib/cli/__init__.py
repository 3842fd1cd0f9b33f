"""The command line: one module per verb. It may import every other package, and none imports it."""

from memagent_lib.cli.main import main, parser

__all__ = ["main", "parser"]
