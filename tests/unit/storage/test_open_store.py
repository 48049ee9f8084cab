import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model.errors import UserError
from penstock.storage import LocalStore, ObjectStore, Prefixed, open_store


@pytest.mark.parametrize("spelling", ["{}", "file://{}"])
def test_a_path_and_its_file_uri_open_the_same_directory(spelling: str, tmp_path: Path) -> None:
    open_store(str(tmp_path)).put("a", b"1")
    assert open_store(spelling.format(tmp_path)).get("a") == b"1"


def test_a_path_with_special_characters_survives_its_own_uri(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "50% of #it ?"))
    store.put("a", b"1")
    assert open_store(store.uri).get("a") == b"1"


def test_a_memory_store_is_found_by_its_name() -> None:
    open_store("memory://found-by-name").put("a/b", b"1")
    assert open_store("memory://found-by-name").get("a/b") == b"1"
    assert open_store("memory://found-by-name/a").get("b") == b"1"
    assert open_store("memory://another").get("a/b") is None


@pytest.mark.parametrize("make", [lambda path: LocalStore(path), lambda _: open_store("memory://for-uris")])
def test_the_uri_of_a_folder_opens_that_folder(make: object, tmp_path: Path) -> None:
    parent: ObjectStore = make(tmp_path)  # type: ignore[operator]
    folder = Prefixed(parent, "jobs/x")
    folder.put("a", b"1")
    reopened = open_store(folder.uri)
    assert reopened.get("a") == b"1"
    reopened.put("b", b"2")
    assert [info.path for info in parent.list("")] == ["jobs/x/a", "jobs/x/b"]


def test_an_unknown_scheme_says_which_there_are() -> None:
    with pytest.raises(UserError, match=r"P017.*ftp://.*\n.*file://, memory://, s3://"):
        open_store("ftp://host/x")


def test_a_file_uri_with_a_host_is_refused() -> None:
    with pytest.raises(UserError, match="three slashes"):
        open_store("file://relative/path")


def test_without_the_library_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['boto3'] = None; from penstock.storage import open_store; open_store('s3://lake')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "S086 s3://lake: s3:// needs boto3, which is not installed here" in ended.stderr
    assert "pip install 'penstock[s3]'" in ended.stderr


def test_nothing_of_the_library_is_imported_without_such_a_store() -> None:
    program = "import sys, penstock, penstock.storage; sys.exit('boto3' in sys.modules or 'botocore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
