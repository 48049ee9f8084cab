"""A bucket of S3, or of a server that speaks it, as an object store.

`create` is a PUT that the store refuses when the object exists (`If-None-Match: *`). Its answer may be lost after the
effect; the next try is then refused because of our own write. So each `create` stamps its object, and whoever is
refused after a try in doubt looks whose stamp is there. That the store honours the condition at all is not taken on
trust: see `_probe`.
"""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from penstock.model.clocks import Clock, SystemClock
from penstock.model.errors import RetryableError
from penstock.storage._paths import check_folder, check_path, check_prefix
from penstock.storage._port import ObjectInfo, UnfinishedUpload, UnknownResultError
from penstock.storage._s3_address import S3Address
from penstock.storage._s3_requests import Refused, S3Requests
from penstock.storage._s3_uploads import STAMP, StagedUpload, Upload

_EXISTS = 412
_MISSING = 404
_OUT_OF_RANGE = 416


class S3Store:
    """A whole bucket; `Prefixed` makes a folder of it a store."""

    def __init__(
        self,
        address: S3Address,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._address, self._bucket = address, address.bucket
        self._random = rng or random.SystemRandom()
        self._requests = S3Requests(address, clock=clock or SystemClock(), rng=self._random, sleep=sleep)

    @property
    def uri(self) -> str:
        """Opens the same bucket in another process."""
        return self._address.uri

    def create(self, path: str, data: bytes) -> bool:
        """Write once; see the port."""
        stamp = self._new_stamp()
        try:
            self._upload(path, data, stamp, once=True)
        except Refused as refused:
            if refused.doubtful:
                return self._is_ours(path, stamp)
            if refused.status == _EXISTS:
                return False
            raise self._explain(refused, path) from refused
        except UnknownResultError as unknown:
            return self._is_ours(path, stamp, unknown)
        return True

    def put(self, path: str, data: bytes) -> None:
        """Write, whole or not at all; see the port."""
        stamp = self._new_stamp()
        try:
            self._upload(path, data, stamp, once=False)
        except Refused as refused:
            # For one, some stores forget an upload in parts once it is complete, and refuse to complete it again.
            if not (refused.doubtful and self._is_ours(path, stamp)):
                raise self._explain(refused, path) from refused

    def get(self, path: str) -> bytes | None:
        """The object, or None."""
        check_path(path)
        return self._read(path, {})

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        """Part of an object."""
        check_path(path)
        # S3 has no empty range: one byte is read, and thrown away.
        asked = {"Range": f"bytes={offset}-{offset + max(length, 1) - 1}"}
        data = self._read(path, asked)
        if data is None:
            raise FileNotFoundError(self._where(path))
        return data[:length]

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects below the prefix, page by page; what is written meanwhile may be there or not."""
        check_prefix(prefix)
        return self._list(prefix)

    def folders(self, prefix: str) -> Iterator[str]:
        """Names of the folders right below the prefix."""
        check_folder(prefix)
        return (
            found["Prefix"].removesuffix("/").rpartition("/")[2]
            for page in self._pages(prefix, Delimiter="/")
            for found in page.get("CommonPrefixes", ())
        )

    def delete(self, path: str) -> None:
        """Remove, if there."""
        check_path(path)
        try:
            self._requests.write("delete_object", {"Bucket": self._bucket, "Key": path}, where=self._where(path))
        except Refused as refused:
            raise self._explain(refused, path) from refused

    def stage(self, path: str, data: bytes) -> str:
        """Write what nobody sees: an upload in parts that is not completed."""
        upload = Upload(self._requests, self._bucket, check_path(path), data, stamp=self._new_stamp(), once=False)
        try:
            return msgspec.json.encode(upload.stage()).decode()
        except Refused as refused:
            raise self._explain(refused, path) from refused

    def publish(self, path: str, staged: str) -> bool:
        """Complete the upload; see the port.

        What it is told is not enough: versitygw says yes to who completes an upload that it does not have, if only
        some object is there, and others say no to who completes one again. So it looks whose object is there.
        """
        upload = msgspec.json.decode(staged, type=StagedUpload)
        arguments = {"Bucket": self._bucket, "Key": check_path(path), **upload.completion}
        try:
            self._requests.write("complete_multipart_upload", arguments, where=self._where(path))
        except Refused as refused:
            if refused.code != "NoSuchUpload" and not refused.doubtful:
                raise self._explain(refused, path) from refused
        return self._stamp_of(path) == upload.stamp

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """Uploads below the prefix that were neither completed nor aborted."""
        arguments: dict[str, Any] = {"Bucket": self._bucket, "Prefix": check_prefix(prefix)}
        while True:
            page = self._answer("list_multipart_uploads", arguments, prefix)
            for found in page.get("Uploads", ()):
                begun_us = int(found["Initiated"].timestamp() * 1_000_000)
                yield UnfinishedUpload(found["Key"], begun_us, found["UploadId"])
            if not page.get("IsTruncated"):
                return
            markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
            arguments = {**arguments, **markers}

    def discard(self, upload: UnfinishedUpload) -> None:
        """Abort it."""
        asked = {"Bucket": self._bucket, "Key": check_path(upload.path), "UploadId": upload.token}
        try:
            self._requests.write("abort_multipart_upload", asked, where=self._where(upload.path))
        except Refused as refused:
            if refused.code != "NoSuchUpload":
                raise self._explain(refused, upload.path) from refused

    # ------------------------------------------------------------ inside

    def _new_stamp(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def _upload(self, path: str, data: bytes, stamp: str, *, once: bool) -> None:
        Upload(self._requests, self._bucket, check_path(path), data, stamp=stamp, once=once).run()

    def _is_ours(self, path: str, stamp: str, unknown: UnknownResultError | None = None) -> bool:
        """Whether the object that is there was written by this very call. UnknownResultError when there is none."""
        try:
            answer = self._requests.read(
                "head_object",
                {"Bucket": self._bucket, "Key": path},
                where=self._where(path),
                patient=unknown is None,  # else the store has just shown that it does not answer
            )
        except (Refused, RetryableError) as error:
            raise UnknownResultError(
                "S012", f"nobody knows whether it was written: {unknown or error}", where=self._where(path)
            ) from error
        return bool(answer["Metadata"].get(STAMP) == stamp)

    def _read(self, path: str, asked: dict[str, str]) -> bytes | None:
        arguments = {"Bucket": self._bucket, "Key": path, "ChecksumMode": "ENABLED", **asked}
        try:
            return self._requests.read_body(arguments, where=self._where(path))
        except Refused as refused:
            if refused.status == _OUT_OF_RANGE:
                return b""
            if refused.status == _MISSING and refused.code != "NoSuchBucket":
                return None
            raise self._explain(refused, path) from refused

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        for page in self._pages(prefix):
            for found in page.get("Contents", ()):
                yield ObjectInfo(found["Key"], found["Size"], int(found["LastModified"].timestamp() * 1_000_000))

    def _pages(self, prefix: str, **options: str) -> Iterator[dict[str, Any]]:
        arguments = {"Bucket": self._bucket, "Prefix": prefix, **options}
        while True:
            page = self._answer("list_objects_v2", arguments, prefix)
            yield page
            if not page.get("IsTruncated"):
                return
            arguments = {**arguments, "ContinuationToken": page["NextContinuationToken"]}

    def _answer(self, operation: str, arguments: dict[str, Any], path: str) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = self._requests.read(operation, arguments, where=self._where(path))
        except Refused as refused:
            raise self._explain(refused, path) from refused
        return answer

    def _stamp_of(self, path: str) -> str | None:
        """Of the object that is there; None when there is none."""
        asked = {"Bucket": self._bucket, "Key": path}
        try:
            answer = self._requests.read("head_object", asked, where=self._where(path))
        except Refused as refused:
            if refused.status == _MISSING:
                return None
            raise self._explain(refused, path) from refused
        stamp: str | None = answer["Metadata"].get(STAMP)
        return stamp

    def _explain(self, refused: Refused, path: str) -> RetryableError:
        return self._requests.explain(refused, self._where(path))

    def _where(self, path: str) -> str:
        return f"s3://{self._bucket}/{path}"
