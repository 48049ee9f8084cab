"""The dashboard in a real browser, over a real job."""

import re
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import msgspec
import pytest
from browser import page_after

import penstock as ps
from penstock.api.programs import build
from penstock.local import LocalCluster
from penstock.model.settings import CheckpointSettings, JobSettings

pytestmark = pytest.mark.services

NAME = '<i id="planted">totals</i>'


class Total(ps.KeyedProcessFunction):
    total = ps.ValueState(int, default=0)

    def open(self, ctx: ps.KeyedContext) -> None:
        self.seen = ctx.counter("rows seen")

    def process(self, ctx: ps.KeyedContext, price: int) -> None:
        self.seen.inc()
        self.total.value += price


def program(flow: ps.Flow) -> None:
    bids = flow.read(ps.nexmark(rate=2_000), event_time="ts", uid="bids")
    bids.key_by("bidder").process(Total(), output={"bidder": int}, uid="totals", name=NAME).write(ps.discard())


@pytest.fixture
def job(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Address of the page, and the id of a job that has two checkpoints."""
    settings = JobSettings(checkpoint=CheckpointSettings(interval_us=500_000))
    with LocalCluster(tmp_path / "state", task_managers=1, slots_per_task_manager=2) as cluster:
        view = cluster.client.submit(msgspec.json.encode(build(program, parallelism=2, settings=settings)))
        deadline = time.monotonic() + 120
        while cluster.client.job(view.id).checkpoints_completed < 2:
            assert time.monotonic() < deadline, cluster.client.job(view.id)
            time.sleep(0.1)
        yield cluster.client.url, view.id


def test_a_person_sees_the_job(job: tuple[str, str], tmp_path: Path) -> None:
    url, name = job
    page = page_after(f"{url}/#{name}", 6, tmp_path / "profile")
    text = unescape(re.sub(r"<[^>]+>", "\n", page))
    assert page.count("data-vertex=") == 2
    assert re.search(r"2 of 2 slots in use, 1 TaskManager", text)
    assert re.search(r"\n[0-9.]+[KM]? rows · [0-9.]+K?/s", text), "rows and rates of operators"
    assert re.search(r"busy \d+ %, held back \d+ %", text)
    assert "hash(bidder)" in text
    assert "of state" in text
    assert text.count("completed") >= 2, "its checkpoints"
    assert "no answer" not in text


def test_what_a_user_wrote_is_text(job: tuple[str, str], tmp_path: Path) -> None:
    url, name = job
    page = page_after(f"{url}/#{name}", 3, tmp_path / "profile")
    assert "&lt;i id=" in page
    assert '<i id="planted"' not in page
