"""``python -m tests.cases.awkward [--behave JSON] [--record FILE]``: over stdio, until EOF."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.cases.awkward.behaviour import Behaviour
from tests.cases.awkward.stdio import serve

parser = argparse.ArgumentParser(description="The awkward MCP server, over stdio.")
parser.add_argument("--behave", default="{}", help="a Behaviour as JSON")
parser.add_argument("--record", type=Path, help="file to append what happens to")
options = parser.parse_args()
serve(Behaviour.from_json(options.behave), options.record)
