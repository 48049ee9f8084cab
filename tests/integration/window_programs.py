"""Programs with windows that the tests of the embedded cluster run."""

import penstock as ps

SECOND = 1_000_000
SECONDS = [n for n in range(20_000) if n % 50 < 40]
LATE = {"user": 7, "at": 5 * SECOND}


def clicks() -> list[dict[str, int]]:
    """A pause of ten seconds every fifty; in the second half a row of long ago comes again and again."""
    rows = [{"user": n % 7, "at": n * SECOND} for n in SECONDS]
    for place in range(len(rows), len(rows) // 2, -100):
        rows.insert(place, LATE)
    return rows


def sessions(flow: ps.Flow) -> None:
    stream = flow.read(ps.items(clicks(), batch_rows=50), event_time="at", unit="us", uid="clicks")
    window = stream.key_by("user").window(ps.session("9s"), late_to="late")
    visits = window.agg(clicks=ps.count(), uid="visits")
    visits.write(ps.collect(), uid="visits-out")
    visits.side_output("late").rebalance().write(ps.collect(), uid="late-out")
