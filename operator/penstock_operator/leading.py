"""Which of several controllers works: the one that holds the Lease.

A controller that cannot renew it in time ends its process: whoever holds the Lease next must be alone.
"""

import asyncio
import logging
import os
import time
from typing import Any, Final

from penstock_operator.kube import ApiError, ConflictError, Kube, NotFoundError
from penstock_operator.moments import utc_now

logger = logging.getLogger(__name__)

LEASE_SECONDS: Final = 15
RENEW_SECONDS: Final = 3.0
GIVE_UP_SECONDS: Final = 10.0
"""Less than the Lease lasts: when another one takes it, we are gone."""


class Leadership:
    """One Lease."""

    def __init__(self, kube: Kube, namespace: str, identity: str, name: str) -> None:
        self._kube, self._namespace, self._name, self._identity = kube, namespace, name, identity
        self._seen: tuple[str, float] = ("", 0.0)
        self.held = False

    async def acquire(self) -> None:
        """Wait until it is ours."""
        while True:
            try:
                if await self._try():
                    break
            except (ApiError, OSError, TimeoutError) as error:
                logger.warning("no lease", extra={"error": str(error)})
            await asyncio.sleep(RENEW_SECONDS)
        self.held = True
        logger.info("leads", extra={"identity": self._identity})

    async def keep(self) -> None:
        """Until it is lost; then this raises, and the process has to end."""
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                async with asyncio.timeout(RENEW_SECONDS):
                    mine = await self._try()
            except (ApiError, OSError, TimeoutError) as error:
                logger.warning("lease not renewed", extra={"error": str(error)})
                mine = time.monotonic() - renewed < GIVE_UP_SECONDS
            else:
                renewed = time.monotonic() if mine else renewed
            if not mine:
                self.held = False
                raise LeadershipLostError(f"{self._identity} no longer holds the Lease {self._name}")

    async def release(self) -> None:
        """Let the next one in at once."""
        if not self.held:
            return
        self.held = False
        try:
            lease = await self._kube.get("Lease", self._namespace, self._name)
            if lease.get("spec", {}).get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._kube.put(lease)
        except (ApiError, OSError, TimeoutError):
            return

    async def _try(self) -> bool:
        try:
            lease = await self._kube.get("Lease", self._namespace, self._name)
        except NotFoundError:
            try:
                await self._kube.create(self._new())
            except ConflictError:
                return False
            return True
        # One that nobody has held yet has no spec.
        spec = lease.setdefault("spec", {})
        holder = spec.get("holderIdentity") or ""
        if holder not in {"", self._identity} and not self._expired(lease):
            return False
        if holder != self._identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
            spec["acquireTime"] = _now()
        spec |= {"holderIdentity": self._identity, "renewTime": _now(), "leaseDurationSeconds": LEASE_SECONDS}
        try:
            await self._kube.put(lease)
        except ConflictError:
            return False
        return True

    def _expired(self, lease: dict[str, Any]) -> bool:
        """By our own clock: whether it has not changed for as long as it lasts. Clocks of others may be wrong."""
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, time.monotonic())
            return False
        lasts = int(lease["spec"].get("leaseDurationSeconds") or LEASE_SECONDS)
        return time.monotonic() - self._seen[1] > lasts

    def _new(self) -> dict[str, Any]:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": LEASE_SECONDS,
                "acquireTime": _now(),
                "renewTime": _now(),
                "leaseTransitions": 1,
            },
        }


class LeadershipLostError(Exception):
    """Somebody else may lead now."""


def own_identity() -> str:
    """Of this process."""
    return f"{os.environ.get('POD_NAME') or os.uname().nodename}-{os.getpid()}"


def _now() -> str:
    return utc_now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
