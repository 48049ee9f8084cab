"""Figures as people read them, and rates from counters."""

from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.views import JobView

_DAY_US = 86_400_000_000


def rows(count: float) -> str:
    """987, 12.3K, 4.56M."""
    for limit, divisor, unit in ((1e4, 1, ""), (1e6, 1e3, "K"), (1e9, 1e6, "M")):
        if count < limit:
            return f"{count:.0f}" if not unit else f"{count / divisor:.3g}{unit}"
    return f"{count / 1e9:.3g}G"


def rate(per_second: float | None) -> str:
    """12.3K; a dash before it is known."""
    return "-" if per_second is None else rows(per_second)


def restarts(count: int) -> str:
    """1 restart, 2 restarts."""
    return f"{count} restart" if count == 1 else f"{count} restarts"


def size(count: int) -> str:
    """12 B, 3.4 KB, 56 MB."""
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def duration(micros: int) -> str:
    """850 ms, 12.3 s, 4 min 05 s, 2 h 03 min."""
    if micros < 1_000_000:
        return f"{micros / 1000:.0f} ms"
    seconds = micros / 1_000_000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def watermark(micros: int | None, now_us: int) -> str:
    """How far behind the clock; "end" when event time is over; days of lag are history, not lag."""
    if micros is None or micros == MIN_WATERMARK:
        return "-"
    if micros >= MAX_WATERMARK:
        return "end"
    lag = now_us - micros
    return f"{lag // _DAY_US} days ago" if lag > 2 * _DAY_US else f"{duration(max(0, lag))} behind"


class Rates:
    """Rows per second of each counter, over about the last second."""

    _SPAN_US = 1_000_000

    def __init__(self) -> None:
        self._marks: dict[str, tuple[int, int]] = {}
        self._rates: dict[str, float] = {}

    def update(self, key: str, count: int, now_us: int) -> float | None:
        """The present rate, once it is known; a counter that went back has started again."""
        marked_us, marked = self._marks.setdefault(key, (now_us, count))
        if count < marked:
            self._marks[key] = (now_us, count)
        elif now_us - marked_us >= self._SPAN_US:
            self._rates[key] = (count - marked) * 1_000_000 / (now_us - marked_us)
            self._marks[key] = (now_us, count)
        return self._rates.get(key)


def rows_read(view: JobView) -> int:
    """Rows that came out of the sources: operators that take none in."""
    operators = [operator for vertex in view.vertices for operator in vertex.operators]
    return sum(operator.rows_out for operator in operators if not operator.rows_in)


def running_us(view: JobView, now_us: int) -> int:
    """Since it was submitted, until now or until it ended."""
    return max(0, (view.ended_us or now_us) - view.submitted_us)
