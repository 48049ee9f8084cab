"""From standby to leader, and on until somebody else leads.

    standing by -- nobody leads, or the leader is gone or silent --> claiming -- won --> leading -- replaced --> over

A leader is silent when its beat has not changed for `silent_after_seconds` of the one who watches. It is replaced
when a later claim is there: only then. One that is late with its beats, since its host or its store was slow, leads
on while nobody has taken its place; whatever it writes is fenced by the journals. One that has not reached its store
for `resign_after_seconds` resigns: others may reach it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TypeVar

from penstock.config import LeaseSettings
from penstock.jobmanager.leases import Beat, Claim, Lead, Lease, is_gone
from penstock.model.clocks import Clock
from penstock.model.errors import RetryableError, UserError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LeadershipLostError(RetryableError):
    """This process leads no more, and must end: what it knows may be wrong by now."""

    def __init__(self, what: str) -> None:
        super().__init__("C027", what, fix="nothing: start this process again, as a standby")


class Election:
    """Call `win` once, then `hold`."""

    def __init__(
        self,
        lease: Lease,
        make_claim: Callable[[int], Claim],
        *,
        settings: LeaseSettings,
        clock: Clock,
        gone: Callable[[Claim], bool] = is_gone,
    ) -> None:
        """`make_claim`: for an epoch. `gone`: whether a holder has certainly ended, so that nobody need wait."""
        self._lease, self._make_claim, self._settings, self._clock = lease, make_claim, settings, clock
        self._gone = gone
        self._answers = asyncio.Event()
        self.leader: Claim | None = None
        """Who leads, as far as a standby knows."""

    async def win(self, *, stand_by: bool = True) -> Claim:
        """Wait until nobody else leads, and claim the next epoch.

        Without `stand_by` C001 names the one that leads, instead of waiting for its end.
        """
        seen: Lead | None = None
        since, noted = self._clock.monotonic(), False
        while True:
            try:
                lead = await asyncio.to_thread(self._lease.look)
                if (won := await self._try(lead, silent=lead == seen and self._has_waited(since))) is not None:
                    return won
            except RetryableError as error:
                logger.warning("the lease cannot be read", extra={"why": str(error)})
            else:
                now = self._clock.monotonic()
                if lead is not None and lead != seen:
                    if not stand_by and self._lives(lead, seen):
                        raise _is_led(lead.claim)
                    if not noted or seen is None or lead.claim != seen.claim:
                        facts = {"leader": lead.claim.holder, "epoch": lead.claim.epoch, "rest": lead.claim.rest}
                        logger.info("jobmanager stands by", extra=facts)
                    seen, since, noted = lead, now, True
                    self.leader = lead.claim
            await asyncio.sleep(self._settings.look_seconds)

    async def hold(self, claim: Claim) -> str:
        """Beat for as long as the claim is the newest; returns why it is not, or why to resign."""
        count, answers, reached = 0, False, self._clock.monotonic()
        while True:
            await self._pause(told=answers)
            count, answers = count + 1, self._answers.is_set()
            try:
                later = await asyncio.to_thread(self._lease.beat, claim, Beat(count=count, answers=answers))
            except RetryableError as error:
                silent = self._clock.monotonic() - reached
                logger.warning("the lease cannot be renewed", extra={"why": str(error), "seconds": round(silent, 1)})
                if silent >= self._settings.resign_after_seconds:
                    return f"the store was not reached for {silent:.0f} s: {error.what}"
                continue
            if later is not None:
                return replaced_by(claim, later)
            reached = self._clock.monotonic()

    def answer(self) -> None:
        """Let everybody know that the leader talks to clients."""
        self._answers.set()

    async def release(self, claim: Claim) -> None:
        """Lead no more, by one's own will: a standby takes over at once."""
        try:
            await asyncio.to_thread(self._lease.beat, claim, Beat(count=0, released=True))
        except RetryableError as error:
            logger.warning("the lease is not released", extra={"why": str(error)})

    async def _pause(self, *, told: bool) -> None:
        """Until the next beat; when there is news, that is now."""
        if told:
            await asyncio.sleep(self._settings.beat_seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.beat_seconds):
                await self._answers.wait()

    async def _try(self, lead: Lead | None, *, silent: bool) -> Claim | None:
        if lead is None:
            return await self._claim(1)
        last = self._make_claim(lead.claim.epoch)
        if lead.claim.holder == last.holder:
            return lead.claim  # the answer to our create was lost
        released = lead.beat is not None and lead.beat.released
        if not released and not silent and not self._gone(lead.claim):
            return None
        why = "it has left" if released else "it is silent" if silent else "its process has ended"
        facts = {"leader": lead.claim.holder, "epoch": lead.claim.epoch, "why": why}
        logger.info("the leader is to be replaced", extra=facts)
        return await self._claim(lead.claim.epoch + 1)

    async def _claim(self, epoch: int) -> Claim | None:
        claim = self._make_claim(epoch)
        return claim if await asyncio.to_thread(self._lease.claim, claim) else None

    def _has_waited(self, since: float) -> bool:
        return self._clock.monotonic() - since >= self._settings.silent_after_seconds

    def _lives(self, lead: Lead, seen: Lead | None) -> bool:
        """Certainly: its process is there, or it was heard while we looked."""
        beats = seen is not None and seen.claim == lead.claim
        own_machine = bool(lead.claim.machine) and lead.claim.machine == self._make_claim(0).machine
        return beats or (own_machine and not self._gone(lead.claim))


def replaced_by(claim: Claim, later: Claim) -> str:
    """For logs and errors."""
    return f"epoch {claim.epoch} is over: {later.holder} on {later.host} leads in epoch {later.epoch}, at {later.rest}"


def _is_led(claim: Claim) -> UserError:
    return UserError(
        "C001",
        f"the state directory belongs to a running JobManager, pid {claim.pid} on {claim.host}",
        where=claim.rest,
        fix=f"stop that one (kill {claim.pid}), or give another --state-dir",
    )
