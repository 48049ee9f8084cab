"""The command: `python3 e2e/cluster --help`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from cluster.commands import main  # noqa: E402  # importable by the line above

sys.exit(main(sys.argv[1:]))
