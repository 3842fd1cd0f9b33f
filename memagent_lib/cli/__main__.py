"""Run the command line as ``python -m memagent_lib.cli``."""

import sys

from memagent_lib.cli.main import main

sys.exit(main())
