"""Writing one object to S3: in one request, or in parts when it is large.

Every write carries its SHA-256, so that what arrives is what was sent, and a stamp in its metadata, so that a writer
whose answer was lost knows its own object again. An upload in parts that fails is aborted: its parts would be kept,
and paid for, without ever being seen.
"""

import base64
import contextlib
import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from penstock.model.errors import RetryableError
from penstock.storage._s3_requests import Refused, S3Requests

STAMP: Final = "penstock-write"
"""Name of the metadata entry. Different for each write, the same for all tries of one."""

SINGLE_BYTES: Final = 32 * 1024 * 1024
"""What is larger goes in parts: a lost connection then costs one of them."""
PART_BYTES: Final = 16 * 1024 * 1024
_PARALLEL_PARTS: Final = 4


class StagedUpload(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to complete an upload, in any process."""

    upload: str
    stamp: str
    parts: tuple[tuple[str, str], ...]
    """ETag and SHA-256 of each."""

    @property
    def completion(self) -> dict[str, Any]:
        """As the request wants it."""
        parts = [
            {"PartNumber": number, "ETag": tag, "ChecksumSHA256": checksum}
            for number, (tag, checksum) in enumerate(self.parts, start=1)
        ]
        return {"UploadId": self.upload, "MultipartUpload": {"Parts": parts}}


class Upload:
    """One object on its way."""

    def __init__(self, requests: S3Requests, bucket: str, key: str, data: bytes, *, stamp: str, once: bool) -> None:
        self._requests, self._data = requests, data
        self._object = {"Bucket": bucket, "Key": key}
        self._where = f"s3://{bucket}/{key}"
        self._metadata = {STAMP: stamp}
        self._condition = {"IfNoneMatch": "*"} if once else {}

    def run(self) -> None:
        """Raises what `S3Requests.write` does; Refused with status 412 when it is `once` and the object is there."""
        if len(self._data) <= SINGLE_BYTES:
            self._put_whole()
        else:
            self._put_parts()

    def _put_whole(self) -> None:
        checksum = _sha256(self._data)
        body = {"Body": self._data, "Metadata": self._metadata, "ChecksumSHA256": checksum}
        self._requests.write("put_object", {**self._object, **self._condition, **body}, where=self._where)

    def _put_parts(self) -> None:
        staged = self.stage()
        try:
            self._requests.write(
                "complete_multipart_upload",
                {**self._object, **self._condition, **staged.completion},
                where=self._where,
            )
        except BaseException:
            # Also when the answer to the completion was lost: it has happened by now, or will not any more.
            self._abort(staged.upload)
            raise

    def stage(self) -> "StagedUpload":
        """All of it is in the store, and nobody sees it."""
        upload = self._requests.write(
            "create_multipart_upload",
            {**self._object, "Metadata": self._metadata, "ChecksumAlgorithm": "SHA256"},
            where=self._where,
        )["UploadId"]
        starts = range(0, max(1, len(self._data)), PART_BYTES)
        try:
            with ThreadPoolExecutor(_PARALLEL_PARTS, thread_name_prefix="s3-part") as pool:
                parts = tuple(pool.map(lambda start: self._put_part(upload, start), starts))
        except BaseException:
            self._abort(upload)
            raise
        return StagedUpload(upload=upload, stamp=self._metadata[STAMP], parts=parts)

    def _put_part(self, upload: str, start: int) -> tuple[str, str]:
        number, data = start // PART_BYTES + 1, self._data[start : start + PART_BYTES]
        checksum = _sha256(data)
        part = {"UploadId": upload, "PartNumber": number, "Body": data, "ChecksumSHA256": checksum}
        answer = self._requests.write("upload_part", {**self._object, **part}, where=f"{self._where}, part {number}")
        return answer["ETag"], checksum

    def _abort(self, upload: str) -> None:
        with contextlib.suppress(Refused, RetryableError):
            self._requests.write(
                "abort_multipart_upload", {**self._object, "UploadId": upload}, where=self._where, patient=False
            )


def _sha256(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode()
