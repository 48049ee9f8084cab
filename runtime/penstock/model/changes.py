"""What a row of an updating stream does to the rows before it: the column that such streams carry."""

CHANGE = "__change"
"""Int8, the first column of every updating stream."""

INSERT, UPDATE, DELETE = 1, 2, -1
"""A row that is new; new values for a key that had some; a row that is no more, with its last values."""

NAMES = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}
