"""Aligned sources over slots: the JobManager's half and the slots' half, with a network between them that loses."""

import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.jobmanager.aligning import Aligning
from penstock.jobmanager.events import Send
from penstock.jobmanager.outbox import Outbox
from penstock.jobmanager.regions import RegionRun, Regions
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.ids import Attempt, JobId, SlotId, TaskManagerId
from penstock.model.messages import Align, Reached
from penstock.taskmanager.aligning import SourceAlignment

JOB, WITHIN_US = JobId("job"), 400


def regions(sources: dict[str, dict[str, Any]], parallelism: int) -> Regions:
    flow = ps.Flow("aligned")
    for name, options in sources.items():
        ranges = ps.generate({"ts": ps.sequence()}, rows=10, splits=parallelism)
        flow.read(ranges, event_time="ts", unit="us", uid=name, **options).write(ps.discard(), uid=f"{name}-out")
    graph = flow.plan(parallelism=parallelism)
    return Regions(graph, since=0.0)


@dataclass
class FakeSource:
    """What a slot's alignment sees of a source task."""

    awaited_time: int = MIN_WATERMARK
    others: int = MIN_WATERMARK

    def align(self, others: int) -> None:
        self.others = others


@dataclass
class Cluster:
    """Every task of every region in a slot of its own region; messages arrive, or do not."""

    regions: Regions
    sources: dict[SlotId, dict[str, FakeSource]] = field(default_factory=dict)
    alignments: dict[SlotId, SourceAlignment] = field(default_factory=dict)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.outbox = Outbox(JOB)
        self.aligning = Aligning(self.regions, self.outbox)
        for run in self.regions.runs:
            self.start(run)

    def start(self, run: RegionRun) -> None:
        """A new attempt, in new slots."""
        run.attempt = self.regions.next_attempt()
        indexes = sorted({task.subtask.index for task in run.region.tasks})
        for index in indexes:
            slot = SlotId(TaskManagerId(f"tm-{run.attempt}"), index)
            tasks = [task for task in run.region.tasks if task.subtask.index == index]
            run.placement[slot] = tuple(tasks)
            self.sources[slot] = {task.chain[0].operator.uid: FakeSource() for task in tasks}
            pairs = [(task, self.sources[slot][task.chain[0].operator.uid]) for task in tasks]
            self.alignments[slot] = SourceAlignment(pairs)  # type: ignore[arg-type]

    def turn(self, slot: SlotId, *, lose_up: bool = False, lose_down: bool = False) -> bool:
        """A turn of a slot; whether it had something to say."""
        alignment, run = self.alignments[slot], self._run_of(slot)
        alignment.settle()
        times = alignment.say(self.now)
        if times and not lose_up:
            attempt = run.attempt or Attempt(0)
            self.aligning.heard(run, Reached(job=JOB, attempt=attempt, slot=slot, times=times))
        for command in self.outbox.take():
            assert isinstance(command, Send)
            assert isinstance(command.directed.message, Align)
            if not lose_down:
                self.alignments[command.directed.slot].hear(command.directed.message.others)
        alignment.settle()
        return bool(times)

    def _run_of(self, slot: SlotId) -> RegionRun:
        return next(run for run in self.regions.runs if slot in run.placement)

    def settle(self) -> None:
        """Let everybody say everything, twice."""
        for _ in range(2):
            self.now += 10.0
            for slot in self.alignments:
                self.turn(slot)
        for alignment in self.alignments.values():
            alignment.settle()

    def all_sources(self, uids: set[str]) -> list[FakeSource]:
        return [source for each in self.sources.values() for uid, source in each.items() if uid in uids]


def slowest_other(source: FakeSource, group: list[FakeSource]) -> int:
    return min((each.awaited_time for each in group if each is not source), default=MAX_WATERMARK)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 3), st.integers(0, 10_000), st.floats(0, 0.7))
def test_nobody_hears_too_much_and_in_the_end_everybody_knows(parallelism: int, seed: int, loss: float) -> None:
    rng = random.Random(seed)
    within = {"align_within": WITHIN_US / 1_000_000}
    shop = {"align_group": "shop", **within}
    cluster = Cluster(regions({"web": shop, "till": shop, "alone": within, "free": {}}, parallelism))
    groups = [cluster.all_sources(uids) for uids in ({"web", "till"}, {"alone"})]
    for _ in range(60):
        for source in cluster.all_sources({"web", "till", "alone"}):
            if rng.random() < 0.3:
                further = max(0, source.awaited_time) + rng.choice((1, 50, 300))
                source.awaited_time = MAX_WATERMARK if rng.random() < 0.02 else min(further, MAX_WATERMARK)
        cluster.now += rng.choice((0.001, 0.02, 1.0))
        for slot in cluster.alignments:
            cluster.turn(slot, lose_up=rng.random() < loss, lose_down=rng.random() < loss)
        for group in groups:
            assert all(source.others <= slowest_other(source, group) for source in group)
    cluster.settle()
    for group in groups:
        assert [source.others for source in group] == [slowest_other(source, group) for source in group]
    assert all(source.others == MIN_WATERMARK for source in cluster.all_sources({"free"}))


def test_a_source_that_wakes_up_behind_the_others_holds_them_again() -> None:
    cluster = Cluster(regions({"web": {"align_within": "1s"}}, 2))
    slow, fast = cluster.all_sources({"web"})
    slow.awaited_time, fast.awaited_time = MAX_WATERMARK, 5_000_000
    cluster.settle()
    assert fast.others == MAX_WATERMARK
    slow.awaited_time = 10
    cluster.now += 0.01
    for slot in cluster.alignments:
        cluster.turn(slot)
    cluster.turn(list(cluster.alignments)[1])
    assert fast.others == 10


def test_a_region_that_restarts_counts_as_the_slowest_until_it_speaks() -> None:
    group = {"align_within": "1s", "align_group": "shop"}
    cluster = Cluster(regions({"web": group, "till": group}, 1))
    (web,), (till,) = cluster.all_sources({"web"}), cluster.all_sources({"till"})
    web.awaited_time, till.awaited_time = 7_000_000, 8_000_000
    cluster.settle()
    assert (web.others, till.others) == (8_000_000, 7_000_000)

    run = next(run for run in cluster.regions.runs if run.region.tasks[0].chain[0].operator.uid == "web")
    (gone,) = run.placement
    del cluster.alignments[gone], cluster.sources[gone]
    run.reset(0.0, "lost")
    cluster.settle()
    assert till.others == MIN_WATERMARK
    cluster.start(run)
    cluster.settle()
    assert till.others == MIN_WATERMARK
    (web,) = cluster.all_sources({"web"})
    web.awaited_time = 6_000_000
    cluster.settle()
    assert till.others == 6_000_000


def test_a_slot_says_news_at_once_small_steps_seldom_and_itself_again_and_again() -> None:
    cluster = Cluster(regions({"web": {"align_within": "4s"}}, 2))
    first, _ = cluster.alignments
    (source,) = cluster.sources[first].values()
    assert cluster.turn(first)
    assert not cluster.turn(first)
    source.awaited_time = 1_000_000
    assert 0 < (cluster.alignments[first].wait(cluster.now) or 0) < 0.1
    cluster.now += 0.1
    assert cluster.turn(first)
    source.awaited_time += 999_999  # less than a quarter of the bound
    cluster.now += 0.1
    assert not cluster.turn(first)
    source.awaited_time += 1
    assert cluster.turn(first)
    assert not cluster.turn(first)
    cluster.now += 5
    assert cluster.turn(first)
