"""Settings as they are given on a command line."""

import pytest

from penstock.model.errors import UserError
from penstock.model.settings import JobSettings, with_texts


def test_numbers_words_and_durations_become_what_the_field_is():
    texts = {"restart.budget": "5", "source.on_bad_record": "drop", "checkpoint.interval": "2s"}
    settings = with_texts(JobSettings(), texts, where="--set")
    assert settings.restart.budget == 5
    assert settings.source.on_bad_record == "drop"
    assert settings.checkpoint.interval_us == 2_000_000


def test_an_unknown_setting_is_refused_with_those_that_exist():
    with pytest.raises(UserError, match="P018") as caught:
        with_texts(JobSettings(), {"checkpoint.intervall": "2s"}, where="--set")
    assert "checkpoint.interval" in (caught.value.fix or "")
