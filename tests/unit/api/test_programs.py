"""Loading a program: what is wrong in the user's file is said with its line."""

import sys
from pathlib import Path

import pytest

from penstock.api import build, load_program
from penstock.model.errors import UserError

PROGRAM = """
import penstock as ps
from helper_of_program import LIMIT, Table

def hot_items(flow: ps.Flow) -> None:
    stream = flow.read(Table(), uid="in")
    stream.filter(ps.col("a") > LIMIT).map(double).write(Table(), uid="out")

def double(a: int) -> "Row":
    return Row(a * 2)

import dataclasses

@dataclasses.dataclass
class Row:
    a: int
"""
HELPER = """
import dataclasses
import polars as pl
from penstock.model.specs import Connector

LIMIT = 3

@dataclasses.dataclass
class Table:
    connector: Connector = dataclasses.field(default_factory=lambda: Connector(kind="table"))
    schema: pl.Schema = dataclasses.field(default_factory=lambda: pl.Schema({"a": pl.Int64}))
    bounded: bool = True
    def as_source(self): return self
    def as_sink(self): return self
    def resolve(self, settings): return self
    def check(self, schema): pass
"""


@pytest.fixture(autouse=True)
def _unchanged_interpreter():
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper_of_program.py").write_text(HELPER)
    path = tmp_path / "main_program.py"
    path.write_text(PROGRAM)
    return path


def test_a_program_is_built_from_its_file_and_function(program):
    graph = build("main_program.py:hot_items", parallelism=2)
    assert graph.name == "hot-items"
    assert [link.operator.uid for link in graph.vertices[0].chain] == ["in", "filter-1", "map-1", "out"]
    assert graph.vertices[0].chain[0].operator.place == "main_program.py:6"
    assert graph.versions["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"


def test_the_function_may_be_left_out_when_it_is_the_only_one(program):
    assert load_program(str(program)).__name__ == "hot_items"


def test_a_module_reference_works_too(program, tmp_path):
    sys.path.insert(0, str(tmp_path))
    assert load_program("main_program:hot_items").__name__ == "hot_items"


def test_a_function_of_the_program_can_be_opened_where_the_file_is_not(program):
    import subprocess

    graph = build("main_program.py:hot_items")
    pickled = graph.vertices[0].chain[2].operator.spec.function.pickled
    script = f"import cloudpickle; print(cloudpickle.loads({pickled!r})(21))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd="/", capture_output=True, text=True, check=False, timeout=200
    )
    assert done.stdout.strip() == "Row(a=42)", done.stderr


def refusal(reference: str) -> UserError:
    with pytest.raises(UserError) as caught:
        build(reference)
    assert caught.value.code == "P001"
    return caught.value


def test_a_missing_module_says_what_to_install(program):
    program.write_text("import penstock\n\nimport no_such_thing.inside\n")
    error = refusal("main_program.py:hot_items")
    assert error.where == "main_program.py:3"
    assert error.what == "ModuleNotFoundError: No module named 'no_such_thing'"
    assert error.fix == "add it to the requirements, or: pip install no_such_thing"


def test_a_syntax_error_is_at_its_line(program):
    program.write_text("x = 1\ndef broken(:\n")
    error = refusal("main_program.py:hot_items")
    assert error.where == "main_program.py:2"
    assert error.what.startswith("SyntaxError: ")


def test_an_exception_while_loading_or_building_is_at_the_users_line(program):
    program.write_text("\n1 / 0\n")
    assert refusal("main_program.py").where == "main_program.py:2"
    program.write_text("def hot_items(flow):\n    x = {}\n    x['y']\n")
    error = refusal("main_program.py:hot_items")
    assert error.where == "main_program.py:3"
    assert error.what == "KeyError: 'y'"


def test_an_exception_in_a_file_next_to_the_program_is_at_that_files_line(program, tmp_path):
    (tmp_path / "helper_of_program.py").write_text("def fail():\n    return [][0]\n")
    program.write_text("import helper_of_program\n\ndef hot_items(flow):\n    helper_of_program.fail()\n")
    error = refusal("main_program.py:hot_items")
    assert error.where == "helper_of_program.py:2"
    assert error.what == "IndexError: list index out of range"


def test_a_missing_function_lists_those_there_are(program):
    error = refusal("main_program.py:hot_item")
    assert error.what == 'main_program.py has no function "hot_item"; the functions are hot_items, double'
    assert error.fix == "did you mean main_program.py:hot_items?"


def test_a_missing_file_guesses_the_nearest(program):
    error = refusal("main_progam.py:hot_items")
    assert "no such file" in error.what
    assert error.fix == "did you mean main_program.py?"


def test_several_candidates_must_be_told_apart(program):
    program.write_text("def a(flow): ...\ndef b(flow): ...\n")
    assert "several functions with a parameter `flow`" in refusal("main_program.py").what
    program.write_text("def a(x): ...\n")
    assert "no function with a parameter `flow`" in refusal("main_program.py").what


def test_a_function_that_wants_more_than_a_flow_is_refused(program):
    program.write_text("\ndef a(flow, more): ...\n")
    error = refusal("main_program.py:a")
    assert error.where == "main_program.py:2"
    assert "missing a required argument: 'more'" in error.what


def test_a_script_that_ends_itself_is_told_about_main(program):
    program.write_text("import sys\nsys.exit(1)\n")
    assert "__main__" in (refusal("main_program.py").fix or "")


def test_a_module_that_is_not_there_is_refused():
    assert "No module named 'nowhere_at_all'" in refusal("nowhere_at_all:f").what
