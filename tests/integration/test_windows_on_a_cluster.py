"""Sessions and late rows through real slots and channels, on two TaskManagers."""

import sys
from collections import Counter
from pathlib import Path

from penstock.api.programs import build
from penstock.local import run_graph
from penstock.local.progress import SilentProgress

PROGRAMS = Path(__file__).parent / "window_programs.py"
SECOND = 1_000_000


def test_sessions_and_their_late_rows(tmp_path):
    graph = build(f"{PROGRAMS}:sessions", parallelism=2)
    result = run_graph(graph, progress=SilentProgress(sys.stdout), state_dir=tmp_path, task_managers=2)
    assert result.job.state == "finished"
    expected = Counter()
    for user in range(7):
        start = last = -100
        for second in (n for n in range(20_000) if n % 50 < 40 and n % 7 == user):
            start = second if second - last > 9 else start
            last = second
            expected[user, start] += 1
    visits, late = result.collected("visits-out"), result.collected("late-out")
    found = {(user, at // SECOND): clicks for user, at, _, clicks in visits.rows() if user < 7}
    assert found == dict(expected)
    # How many came too late depends on how fast time passed; every one of them is in one place or the other.
    in_time = sum(clicks for user, _, _, clicks in visits.rows() if user == 7)
    assert late.rows() == [(7, 5 * SECOND)] * late.height
    assert late.height > 0
    assert in_time + late.height == 80
