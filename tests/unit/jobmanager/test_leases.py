"""Who leads: claims and beats in a store, and how a standby comes to lead."""

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from penstock.config import LeaseSettings
from penstock.jobmanager.leading import Election
from penstock.jobmanager.leases import Beat, Claim, Lead, StoreLease, is_gone, new_claim
from penstock.model.clocks import SystemClock
from penstock.model.errors import RetryableError, UserError
from penstock.model.ids import Epoch
from penstock.storage import LocalStore, MemoryStore, ObjectStore, UnknownResultError

QUICK = LeaseSettings(beat_seconds=0.05, look_seconds=0.02, silent_after_seconds=0.5, resign_after_seconds=0.3)


def claim(epoch: int, holder: str) -> Claim:
    made = new_claim(epoch, holder=holder, grpc=f"{holder}:1", rest=f"http://{holder}:2")
    return msgspec.structs.replace(made, machine="elsewhere")


def election(store: ObjectStore, holder: str, settings: LeaseSettings = QUICK) -> Election:
    return Election(StoreLease(store), lambda epoch: claim(epoch, holder), settings=settings, clock=SystemClock())


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path)


class LosingAnswers(MemoryStore):
    """Each create has its effect and no answer; or its answer is lost, and it comes into being later."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[tuple[str, bytes]] = []
        self.delay = False
        self.asked = threading.Event()

    def create(self, path: str, data: bytes) -> bool:
        if self.delay:
            self.late.append((path, data))
            self.asked.set()
        else:
            super().create(path, data)
        raise UnknownResultError("S012", "the answer is lost")

    def arrive(self) -> None:
        for path, data in self.late:
            super().create(path, data)


class ClockByHand(SystemClock):
    """Time passes when the test says so."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


class CountingLease(StoreLease):
    looks = 0

    def look(self) -> Lead | None:
        self.looks += 1
        return super().look()


def last_beat(store: ObjectStore) -> int:
    lead = StoreLease(store).look()
    return lead.beat.count if lead is not None and lead.beat is not None else 0


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(200):
        while not holds():  # noqa: ASYNC110 - what is waited for happens in threads
            await asyncio.sleep(0.01)


async def goes_on(count: Callable[[], int], *, by: int) -> None:
    before = count()
    await until(lambda: count() >= before + by)


def test_nobody_has_led_then_epochs_follow_each_other(store: ObjectStore) -> None:
    lease = StoreLease(store)
    assert lease.look() is None
    assert lease.claim(claim(1, "a"))
    assert not lease.claim(claim(1, "b"))
    lead = StoreLease(store).look()
    assert lead is not None
    assert (lead.claim.holder, lead.beat) == ("a", None)
    assert lease.beat(claim(1, "a"), Beat(count=3)) is None
    assert StoreLease(store).claim(claim(2, "b"))
    later = lease.beat(claim(1, "a"), Beat(count=4))
    assert later is not None
    assert later.holder == "b"
    lead = lease.look()
    assert lead is not None
    assert lead.claim.epoch == 2


def test_of_many_that_claim_an_epoch_one_wins(store: ObjectStore) -> None:
    for epoch in range(1, 6):
        start, winners = threading.Barrier(8), list[int]()

        def run(me: int, epoch: int = epoch, start: threading.Barrier = start, won: list[int] = winners) -> None:
            start.wait()
            if StoreLease(store).claim(claim(epoch, f"jm-{me}")):
                won.append(me)

        threads = [threading.Thread(target=run, args=(me,)) for me in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lead = StoreLease(store).look()
        assert lead is not None
        assert [f"jm-{each}" for each in winners] == [lead.claim.holder]


def test_a_claim_whose_answer_is_lost_is_ours_when_it_is_there() -> None:
    store = LosingAnswers()
    lease = StoreLease(store)
    assert lease.claim(claim(1, "a"))
    assert not lease.claim(claim(1, "b"))
    store.delay = True
    assert not lease.claim(claim(2, "b"))
    lead = lease.look()
    assert lead is not None
    assert lead.claim.holder == "a"


async def test_a_claim_that_arrives_late_is_found_to_be_ours() -> None:
    store = LosingAnswers()
    store.delay = True
    winning = asyncio.ensure_future(election(store, "a").win())
    await asyncio.wait_for(asyncio.to_thread(store.asked.wait, 10), 60)
    store.arrive()
    won = await asyncio.wait_for(winning, 60)
    assert (won.epoch, won.holder) == (1, "a")


async def test_a_standby_leads_when_the_leader_is_silent_and_not_before() -> None:
    store, patient = MemoryStore(), msgspec.structs.replace(QUICK, silent_after_seconds=20.0)
    first = election(store, "a")
    won = await first.win()
    holding = asyncio.ensure_future(first.hold(won))
    clock, lease = ClockByHand(), CountingLease(store)
    standby = Election(lease, lambda epoch: claim(epoch, "b"), settings=patient, clock=clock)
    standing_by = asyncio.ensure_future(standby.win())
    for _ in range(4):
        clock.seconds += 15.0
        await goes_on(lambda: last_beat(store), by=1)
        await goes_on(lambda: lease.looks, by=2)
        assert not standing_by.done()
    assert standby.leader is not None
    assert standby.leader.rest == "http://a:2"
    holding.cancel()
    while not standing_by.done():
        clock.seconds += 25.0
        await goes_on(lambda: lease.looks + 2 * standing_by.done(), by=2)
    assert standing_by.result().epoch == 2


async def test_a_leader_that_was_replaced_while_it_slept_finds_out(store: ObjectStore) -> None:
    first = election(store, "a")
    won = await first.win()
    assert (await election(store, "b").win()).epoch == 2
    why = await asyncio.wait_for(first.hold(won), 60)
    assert why.startswith("epoch 1 is over: b on ")
    assert "leads in epoch 2, at http://b:2" in why


async def test_nobody_waits_for_a_leader_that_has_left() -> None:
    store, never = MemoryStore(), msgspec.structs.replace(QUICK, silent_after_seconds=1e9)
    first = election(store, "a", never)
    won = await first.win()
    standing_by = asyncio.ensure_future(election(store, "b", never).win())
    await first.release(won)
    assert (await asyncio.wait_for(standing_by, 60)).epoch == 2


async def test_nobody_waits_for_a_process_of_this_machine_that_has_ended() -> None:
    store, never = MemoryStore(), msgspec.structs.replace(QUICK, silent_after_seconds=1e9)
    ended = msgspec.structs.replace(new_claim(1, holder="a", grpc="g", rest="r"), process="1@1")
    assert is_gone(ended) == bool(ended.machine)
    if not ended.machine:
        pytest.skip("this system does not tell its processes apart")
    assert not is_gone(new_claim(1, holder="a", grpc="g", rest="r"))
    assert StoreLease(store).claim(ended)
    assert (await asyncio.wait_for(election(store, "b", never).win(), 60)).epoch == 2


async def test_who_may_not_stand_by_is_told_who_leads() -> None:
    store, never = MemoryStore(), msgspec.structs.replace(QUICK, silent_after_seconds=1e9)
    first = election(store, "a")
    holding = asyncio.ensure_future(first.hold(await first.win()))
    with pytest.raises(UserError, match=r"C001 http://a:2: .*belongs to a running JobManager, pid "):
        await asyncio.wait_for(election(store, "b", never).win(stand_by=False), 60)
    holding.cancel()


async def test_a_leader_goes_on_while_its_store_is_away_and_resigns_when_that_lasts() -> None:
    class Away(MemoryStore):
        refused = 0

        def put(self, path: str, data: bytes) -> None:
            self.refused += 1
            raise RetryableError("S083", "the store does not answer")

    store, clock = Away(), ClockByHand()
    leader = Election(StoreLease(store), lambda epoch: claim(epoch, "a"), settings=QUICK, clock=clock)
    won = await leader.win()
    holding = asyncio.ensure_future(leader.hold(won))
    await until(lambda: store.refused > 3)
    assert not holding.done()
    clock.seconds += QUICK.resign_after_seconds
    assert "the store was not reached for" in await asyncio.wait_for(holding, 60)


@pytest.mark.parametrize("seed", range(5))
async def test_however_many_fight_for_it_each_epoch_has_one_leader(seed: int) -> None:
    """Leaders die at random moments; nobody ever leads in an epoch that another one has led in."""
    store, rng, leaders = MemoryStore(), random.Random(seed), dict[Epoch, str]()
    names = iter(range(1000))

    async def life() -> None:
        name = f"jm-{next(names)}"
        me = election(store, name)
        won = await me.win()
        assert leaders.setdefault(won.epoch, name) == name
        holding = asyncio.ensure_future(me.hold(won))
        await asyncio.sleep(rng.random() * 0.1)
        holding.cancel()

    while len(leaders) < 8:
        lives = [asyncio.ensure_future(life()) for _ in range(3)]
        await asyncio.wait(lives, return_when=asyncio.FIRST_COMPLETED)
        for each in lives:
            if each.done():
                each.result()
            each.cancel()
    assert sorted(leaders) == list(range(1, len(leaders) + 1))
