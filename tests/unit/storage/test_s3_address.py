import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import UserError
from penstock.storage import Prefixed, folder_of, open_store
from penstock.storage._s3_address import S3Address, S3Connection, parse_s3_address

ADDRESSES = st.builds(
    S3Address,
    bucket=st.sampled_from(["lake", "my.bucket-1"]),
    folder=st.sampled_from(["", "jobs", "a b/ü/50%"]),
    connection=st.builds(
        S3Connection,
        endpoint=st.sampled_from(["", "http://127.0.0.1:9000", "https://minio.example"]),
        region=st.sampled_from(["", "eu-west-1"]),
        path_style=st.sampled_from([None, True, False]),
        connect_timeout_us=st.sampled_from([5_000_000, 250_000]),
        read_timeout_us=st.integers(1, 10**9),
    ),
    retry_for_us=st.sampled_from([0, 180_000_000, 90_000_000]),
)


@given(ADDRESSES)
def test_an_address_is_read_back_as_it_was_written(address: S3Address) -> None:
    assert parse_s3_address(address.uri) == address


def test_what_is_as_usual_is_not_written() -> None:
    assert parse_s3_address("s3://lake/jobs/?retry_for=3m&connect_timeout=5s").uri == "s3://lake/jobs"


@pytest.mark.parametrize(
    ("uri", "complaint"),
    [
        ("s3://", r'"" cannot be the name of a bucket.*\n.*s3://bucket/folder'),
        ("s3://No_Bucket/x", '"No_Bucket" cannot be'),
        ("s3://lake?endpont=http://a", r'"endpont=http://a".*\n.*did you mean "endpoint"'),
        ("s3://lake?region=a&region=b", r'"region=b".*\n.*each once'),
        ("s3://lake?region=", '"region="'),
        ("s3://lake?endpoint=10.0.0.1:9000", "the endpoint must be http://host:port"),
        ("s3://lake?endpoint=http://a/bucket", "the endpoint must be"),
        ("s3://lake?path_style=yes", "path_style is true or false"),
    ],
)
def test_a_mistake_is_told_with_its_place(uri: str, complaint: str) -> None:
    with pytest.raises(UserError, match=f"P017.*{complaint}"):
        parse_s3_address(uri)


def test_credentials_in_an_address_are_refused_and_not_repeated() -> None:
    with pytest.raises(UserError, match=r"credentials in the environment") as caught:
        parse_s3_address("s3://lake?endpoint=http://me:secret@host:9000")
    assert not re.search("me|secret", caught.value.what.replace("no more", ""))


def test_a_time_that_cannot_be_read_is_told_by_its_name() -> None:
    with pytest.raises(UserError, match='P011 retry_for: cannot read "soon"'):
        parse_s3_address("s3://lake?retry_for=soon")


def test_a_folder_of_a_bucket_keeps_the_options_in_its_uri() -> None:
    """No request is made: a store is opened without talking to anybody."""
    jobs = open_store("s3://lake/jobs?endpoint=http://h:1&region=r")
    assert jobs.uri == "s3://lake/jobs?endpoint=http://h:1&region=r"
    assert Prefixed(jobs, "a/b").uri == "s3://lake/jobs/a/b?endpoint=http://h:1&region=r"
    assert Prefixed(open_store("s3://lake"), "a").uri == "s3://lake/a"


def test_only_paths_and_file_uris_are_folders_of_this_machine() -> None:
    assert [str(folder_of(uri)) for uri in ("state", "file:///a/b%20c", "s3://lake")] == ["state", "/a/b c", "None"]
