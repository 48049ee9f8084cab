"""A map state is used like a dictionary of the current key."""

import penstock as ps
from penstock import testing


class Cart(ps.KeyedProcessFunction):
    items = ps.MapState(str, int)

    def process(self, ctx: ps.KeyedContext, item: str, count: int) -> tuple[str, str]:
        if count:
            self.items[item] = count
        elif item in self.items:
            del self.items[item]
        else:
            try:
                del self.items[item]
            except KeyError as missing:
                return ctx.key, f"no {missing.args[0]}"
        assert self.items.items() == list(zip(self.items.keys(), self.items.values(), strict=True))
        return ctx.key, ",".join(f"{name}={self.items[name]}" for name in sorted(self.items))


def test_entries_come_and_go_by_key() -> None:
    rows = [("ann", "tea", 2), ("bob", "tea", 1), ("ann", "jam", 1), ("ann", "tea", 0), ("ann", "tea", 0)]
    given = testing.source([dict(zip(("user", "item", "count"), row, strict=True)) for row in rows], batch_rows=2)

    def carts(rows: ps.DataStream) -> ps.DataStream:
        return rows.key_by("user").process(Cart(), output={"user": str, "cart": str}, uid="carts")

    expected = [("ann", "tea=2"), ("bob", "tea=1"), ("ann", "jam=1,tea=2"), ("ann", "jam=1"), ("ann", "no tea")]
    testing.assert_rows(testing.run_stream(carts, {"rows": given}), expected)
    calm = testing.assert_survives(carts, {"rows": given}, crash_after=(1, 3), checkpoint_every=1)
    testing.assert_rows(calm, expected)
