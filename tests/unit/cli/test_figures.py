import pytest

from penstock.local import figures
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.views import JobView, OperatorView, VertexView


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (9999, "9999"), (12_340, "12.3K"), (4_560_000, "4.56M"), (7.1e9, "7.1G")]
)
def test_rows_are_short(count, text):
    assert figures.rows(count) == text


@pytest.mark.parametrize(
    ("micros", "text"),
    [(850_000, "850 ms"), (12_340_000, "12.3 s"), (245_000_000, "4 min 05 s"), (7_380_000_000, "2 h 03 min")],
)
def test_durations_have_their_unit(micros, text):
    assert figures.duration(micros) == text


def test_sizes_have_their_unit():
    assert [figures.size(n) for n in (12, 3_400, 56_000_000)] == ["12 B", "3.4 KB", "56 MB"]


def test_a_watermark_is_shown_as_its_distance_to_now():
    now = 10 * 86_400_000_000
    assert figures.watermark(None, now) == "-"
    assert figures.watermark(MIN_WATERMARK, now) == "-"
    assert figures.watermark(MAX_WATERMARK, now) == "end"
    assert figures.watermark(now - 2_500_000, now) == "2.5 s behind"
    assert figures.watermark(0, now) == "10 days ago"


def test_a_rate_is_taken_over_a_second_and_forgets_what_a_restart_reset():
    rates = figures.Rates()
    assert rates.update("a", 0, 0) is None
    assert rates.update("a", 500, 500_000) is None
    assert rates.update("a", 2_000, 1_000_000) == 2_000
    assert rates.update("a", 10, 1_500_000) == 2_000
    assert rates.update("a", 1_010, 2_500_000) == 1_000


def test_rows_read_are_those_that_sources_gave():
    source = OperatorView(uid="s", name="s", rows_out=100)
    sink = OperatorView(uid="k", name="k", rows_in=7)
    view = JobView(
        id="j", name="j", state="running", attempt=1, restarts=0, parallelism=1, submitted_us=0,
        vertices=(VertexView(id="v", parallelism=1, operators=(source, sink)),),
    )  # fmt: skip
    assert figures.rows_read(view) == 100
