"""docs/errors.md lists every error code that the runtime uses, and no other."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = re.compile(r'"([PRSCH]\d{3})[ "]')


def used_codes() -> set[str]:
    sources = (ROOT / "runtime" / "penstock").rglob("*.py")
    return {code for path in sources if "testing" not in path.parts for code in CODE.findall(path.read_text())}


def documented_codes() -> list[str]:
    return re.findall(r"^\| ([PRSCH]\d{3}) \|", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)


def test_every_code_is_documented_once() -> None:
    assert sorted(documented_codes()) == sorted(used_codes())
