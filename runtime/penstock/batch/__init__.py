"""The same program over history, on Spark: logical graph to DataFrames, savepoints as tables, both engines compared.

Needs PySpark: `pip install 'penstock[spark]'`, and Java 17 or newer.
"""

import importlib.util

from penstock.model.errors import UserError

if importlib.util.find_spec("pyspark") is None:
    raise UserError(
        "P080",
        "PySpark is not installed, and this needs it",
        fix="pip install 'penstock[spark]', and Java 17 or newer",
    )

from penstock.batch.bootstrapping import bootstrap
from penstock.batch.comparing import Difference, Shape, collecting, compare, shapes
from penstock.batch.running import BatchResult, explain, run
from penstock.batch.savepoints import read_savepoint, write_savepoint
from penstock.batch.session import prepared, session

__all__ = [
    "BatchResult",
    "Difference",
    "Shape",
    "bootstrap",
    "collecting",
    "compare",
    "explain",
    "prepared",
    "read_savepoint",
    "run",
    "session",
    "shapes",
    "write_savepoint",
]
