"""The command line: a function per verb. It may import every other package, and none imports it."""

from memagent_lib.cli.main import commands, main

__all__ = ["commands", "main"]
