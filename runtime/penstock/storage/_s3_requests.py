"""One request to S3: made again until it is answered, its failures put into our own words.

Owns: which answers are final, which are worth another try, and which leave it open whether a write has happened.
A request that was answered with an error of the server (5xx), or not at all, may have had its effect all the same:
it is in doubt, and whatever a later try is told must be read with that in mind.

A 403 is told at once to who has never been let in. Who has been, for requests of the same kind, asks again: some
stores that keep objects as files (MinIO) say it for a moment to who writes into a folder while somebody else removes
its last object, and rights are mended while jobs wait.
"""

import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from penstock.model.clocks import Clock
from penstock.model.errors import RetryableError
from penstock.storage._port import UnknownResultError
from penstock.storage._s3_address import S3Address
from penstock.storage._s3_clients import client_of

Arguments = Mapping[str, Any]

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
"""Seconds. Each pause is drawn below a bound that doubles from the first to the longest: hosts that failed together
do not come back together."""

_NOT_SENT: Final = (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)
_UNANSWERED: Final = (
    boto.HTTPClientError,
    boto.IncompleteReadError,
    boto.FlexibleChecksumError,
    ResponseParserError,
)
_NO_CREDENTIALS: Final = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.ProfileNotFound,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
)
_CHECKSUM_CODES: Final = frozenset({"BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"})
_BUSY_CODES: Final = frozenset(
    {"SlowDown", "RequestTimeout", "Throttling", "TooManyRequests", "IncompleteBody"}
    | {"ConditionalRequestConflict", "OperationAborted"}
    | _CHECKSUM_CODES
)
_DENIED_CODES: Final = frozenset({"AccessDenied", "403"})
"""The second for HEAD, whose answers have no body that could say more."""
_FLEETING_TRIES: Final = {"ExistingObjectIsDirectory": 10, "AccessDenied": 6}
"""What a first write may be answered for a moment by versitygw (the first) and MinIO (the second), when somebody else
removes the last object of its folder. If it lasts, it means what it says."""

_LOGIN_CODES: Final = frozenset(
    {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "403", "401"}
    | {"RequestTimeTooSkewed", "AllAccessDisabled", "AccountProblem"}
)


class Refused(Exception):
    """The store has answered with an error, and another try would be answered in the same way."""

    def __init__(self, code: str, status: int, text: str, *, doubtful: bool) -> None:
        super().__init__(f"{status} {code}" + (f" ({text})" if text else ""))
        self.code, self.status = code, status
        self.doubtful = doubtful
        """An earlier try may have had its effect."""


class S3Requests:
    """All requests of one store."""

    def __init__(
        self, address: S3Address, *, clock: Clock, rng: random.Random, sleep: Callable[[float], None]
    ) -> None:
        self._address, self._clock, self._random, self._sleep = address, clock, rng, sleep
        self._let_in: set[str] = set()
        """Operations that have worked before."""

    def write(self, operation: str, arguments: Arguments, *, where: str, patient: bool = True) -> Any:
        """Call a method of the client until it works, at most `retry_for` long; once when not `patient`.

        Raises Refused, RetryableError when nothing happened, UnknownResultError when that cannot be told.
        """
        return self._make(operation, arguments, where, patient=patient, writes=True)

    def read(self, operation: str, arguments: Arguments, *, where: str, patient: bool = True) -> Any:
        """As `write`, for what changes nothing, and so leaves nothing in doubt."""
        return self._make(operation, arguments, where, patient=patient, writes=False)

    def read_body(self, arguments: Arguments, *, where: str) -> bytes:
        """An object, whole or a range; a body that breaks off is read again."""
        body: bytes = self._make("get_object", arguments, where, patient=True, writes=False, finish=_body)
        return body

    def explain(self, refused: Refused, where: str) -> RetryableError:
        """What was refused, and what to do about it. Not hopeless: people mend buckets while jobs wait."""
        bucket, at = self._address.bucket, self._place()
        if refused.code == "NoSuchBucket":
            fix = f"aws s3api create-bucket --bucket {bucket}, or name another one"
            return RetryableError("S081", f'there is no bucket "{bucket}" at {at}', where=where, fix=fix)
        if refused.code in _LOGIN_CODES:
            what = f"{at} does not let us in: {refused}"
            return RetryableError("S082", what, where=where, fix=_login_fix(refused.code))
        return RetryableError("S085", f"{at} refused: {refused}", where=where, fix=_other_fix(refused))

    def _make(
        self,
        operation: str,
        arguments: Arguments,
        where: str,
        *,
        patient: bool,
        writes: bool,
        finish: Callable[[Any], Any] = lambda answer: answer,
    ) -> Any:
        deadline = self._clock.monotonic() + self._address.retry_for_us / 1e6 * patient
        doubtful = False
        for tries in itertools.count(1):
            try:
                answer = finish(getattr(client_of(self._address.connection), operation)(**arguments))
            except _NO_CREDENTIALS as error:
                raise self._no_credentials(where, str(error)) from error
            except boto.ClientError as error:
                refused = _refused(error, doubtful=doubtful)
                fleeting = writes and tries < _FLEETING_TRIES.get(refused.code, 1)
                if not (fleeting or self._may_pass(refused, operation)):
                    raise refused from error
                doubtful |= writes and refused.status >= 500
                last: Exception = error
            except _NOT_SENT as error:
                last = error
            except _UNANSWERED as error:
                doubtful |= writes
                last = error
            else:
                self._let_in.add(operation)
                return answer
            pause = self._random.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(tries - 1, 10)))
            if self._clock.monotonic() + pause > deadline:
                raise self._given_up(where, last, tries, doubtful=doubtful) from last
            self._sleep(pause)
        raise AssertionError("unreachable")

    def _may_pass(self, refused: Refused, operation: str) -> bool:
        if refused.code in _DENIED_CODES:
            return operation in self._let_in
        status = refused.status
        return refused.code in _BUSY_CODES or status == 429 or (status >= 500 and status != 501)

    def _no_credentials(self, where: str, told: str) -> RetryableError:
        fix = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this host a role"
        return RetryableError("S082", f"there are no credentials: {told}", where=where, fix=fix)

    def _given_up(self, where: str, last: Exception, tries: int, *, doubtful: bool) -> RetryableError | Refused:
        tried = f"{tries} tries" if tries > 1 else "one try"
        if isinstance(last, boto.ClientError) and (refused := _refused(last, doubtful=doubtful)).code in _DENIED_CODES:
            return refused
        if doubtful:
            return UnknownResultError(
                "S012", f"{self._place()} has not answered for certain in {tried}: {last}", where=where
            )
        if isinstance(last, boto.ClientError):
            fix = "if it lasts, allow more time (`?retry_for=10m`), or more requests on the store's side"
            return RetryableError(
                "S084", f"{self._place()} is busy: {tried}, the last one: {last}", where=where, fix=fix
            )
        fix = "start the store, or correct the endpoint: `?endpoint=http://host:port`, or AWS_ENDPOINT_URL"
        return RetryableError("S083", f"{self._place()} does not answer in {tried}: {last}", where=where, fix=fix)

    def _place(self) -> str:
        return self._address.connection.endpoint or str(client_of(self._address.connection).meta.endpoint_url)


def _refused(error: boto.ClientError, *, doubtful: bool) -> Refused:
    answer, status = error.response.get("Error", {}), error.response["ResponseMetadata"]["HTTPStatusCode"]
    return Refused(answer.get("Code", "unknown"), status, answer.get("Message", ""), doubtful=doubtful)


def _body(answer: Any) -> bytes:
    body: bytes = answer["Body"].read()
    return body


def _login_fix(code: str) -> str:
    if code == "RequestTimeTooSkewed":
        return "set the clock of this host"
    if code in ("ExpiredToken", "InvalidToken"):
        return "get new credentials; the usual chain is read: environment, AWS_PROFILE, the role of this host"
    return "check the credentials (environment, AWS_PROFILE, role); docs/object-stores.md lists the permissions needed"


def _other_fix(refused: Refused) -> str | None:
    if refused.code in ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"):
        return "give the region of the bucket: `?region=...`, or AWS_REGION"
    if refused.status == 501:
        return "the store lacks this part of S3; docs/object-stores.md names stores that work"
    return None
