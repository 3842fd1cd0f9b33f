"""The smallest valid record of every format, and the options that the name of a real file would imply."""

import json
from pathlib import Path

RECORDS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
OPTIONS = {"babilong": {"task": "qa1"}, "infinitebench": {"task": "longbook_choice_eng"}}
