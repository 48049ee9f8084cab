import polars as pl
import pytest

from penstock.checkpoint import canonical
from penstock.model import specs
from penstock.model.handles import Redistribution
from penstock.operators.base import Section


@pytest.mark.parametrize("redistribution", [Redistribution.KEYED, Redistribution.UNION, Redistribution.LIST])
def test_columns_with_names_of_our_own_come_back_by_them(redistribution):
    """Rows of a loop, which belong to a subtask, carry one: without keys, and in no order of key groups."""
    frame = pl.DataFrame(
        {"key_group": [1, 2], "name": ["a", "b"], "__for_subtask": [0, 1]},
        schema={"key_group": pl.UInt16, "name": pl.String, "__for_subtask": pl.Int64},
    )
    table, columns, form = canonical.to_table(specs.Union(columns=()), Section("in-flight-0", redistribution, frame))
    assert table.columns == [column.name for column in columns]
    assert not any(name.startswith("__") for name in table.columns)
    read = canonical.decode(canonical.encode(table), columns)
    assert canonical.from_table(read, columns, form).equals(frame)
