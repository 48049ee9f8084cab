import io
import logging

from penstock.config import BoundLogger
from penstock.config.logs import FactsFormatter


def line(**facts: object) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(FactsFormatter())
    logger = logging.Logger("test")
    logger.addHandler(handler)
    BoundLogger(logger, {"slot": "tm#0"}).info("slot ready", extra=facts)
    return stream.getvalue()


def test_a_line_is_time_level_message_and_facts():
    time, level, rest = line(pid=7).split(" ", 2)
    assert time.endswith("Z")
    assert level == "INFO"
    assert rest == "slot ready slot=tm#0 pid=7\n"


def test_facts_with_spaces_quotes_and_line_ends_stay_one_fact_on_one_line():
    text = line(reason='it said "no"\nand left', empty="")
    assert text.count("\n") == 1
    assert r'reason="it said \"no\"\nand left" empty=""' in text
