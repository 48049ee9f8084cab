"""Print what an image installs before the project itself, so that a change of code leaves that layer as it is.

`python3 requirements.py pyproject.toml runtime s3 rocksdb`: the project's own dependencies and those of the named
extras; without the word `runtime` those of the extras alone.
"""

import sys
import tomllib
from pathlib import Path

file, *wanted = sys.argv[1:]
project = tomllib.loads(Path(file).read_text())["project"]
extras = {"runtime": project["dependencies"], **project["optional-dependencies"]}
for name in wanted:
    if name not in extras:
        sys.exit(f'{file} has no extra "{name}"; there are: {", ".join(sorted(extras))}')
    print("\n".join(extras[name]))
