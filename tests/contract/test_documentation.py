"""Every Python example of the documentation runs, from the top of its page to the end."""

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in (ROOT / "docs").glob("*.md") if "```python\n" in path.read_text())
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page: Path) -> Iterator[tuple[int, str]]:
    """First line and source of each block."""
    text = page.read_text()
    for block in _BLOCK.finditer(text):
        yield text.count("\n", 0, block.start(1)) + 1, block.group(1)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"docs_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # classes are pickled by the module they are in
    for line, source in examples(page):
        code = compile("\n" * (line - 1) + source, str(page), "exec")
        exec(code, module.__dict__)
