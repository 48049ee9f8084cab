"""Settings as programs name them."""

import pytest

import penstock as ps
from penstock import testing
from penstock.model.errors import UserError
from penstock.model.settings import JobSettings, with_values


def test_settings_are_changed_by_name_and_durations_are_read() -> None:
    values = {"source.on_bad_record": "drop", "checkpoint.interval": "1s", "state.memory_budget": 1}
    changed = with_values(JobSettings(), values, where="here")
    assert (changed.source.on_bad_record, changed.checkpoint.interval_us, changed.state.memory_budget) == (
        "drop",
        1_000_000,
        1,
    )
    assert changed.restart == JobSettings().restart


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"source.on_bad_rows": "drop"}, r'no setting "source.on_bad_rows".*source.on_bad_record'),
        ({"on_bad_record": "drop"}, 'no setting "on_bad_record"'),
        ({"state.backend": "rocks"}, "state.backend='rocks'.*Invalid enum value"),
        ({"state.memory_budget": "much"}, "state.memory_budget='much'.*Expected `int`"),
    ],
)
def test_what_is_no_setting_is_refused(values: dict[str, str], problem: str) -> None:
    with pytest.raises(UserError, match=f"(?s)P018 here: .*{problem}"):
        with_values(JobSettings(), values, where="here")


def test_a_program_configures_its_job() -> None:
    def program(flow: ps.Flow) -> None:
        flow.configure({"source.on_bad_record": "drop"})
        rows = flow.read(ps.items([{"ts": 1}]), event_time="ts", unit="s", uid="rows")
        rows.write(ps.discard(), uid="out")

    result = testing.run_stream(program, {"rows": [{"ts": 1}, {"ts": None}, {"ts": 2}]})
    assert result.rows() == [(1,), (2,)]
