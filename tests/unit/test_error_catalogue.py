"""docs/errors.md lists every error code that is used, and no other."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"""["']([PRSCHMK]\d{3})[ "]""")


def used_codes() -> set[str]:
    packages = [ROOT / "runtime" / "penstock", ROOT / "operator"]
    sources = [path for package in packages for path in package.rglob("*.py")]
    return {code for path in sources if "testing" not in path.parts for code in CODE.findall(path.read_text())}


def documented_codes() -> list[str]:
    return re.findall(r"^\| ([PRSCHMK]\d{3}) \|", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)


def test_every_code_is_documented_once() -> None:
    assert sorted(documented_codes()) == sorted(used_codes())
