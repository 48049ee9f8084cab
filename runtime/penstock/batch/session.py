"""The Spark that a program runs on: found, started, and set up so that it computes what the stream engine does."""

import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from penstock.model.errors import UserError

SEMANTICS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",  # integers go round and a division by zero is no error, as on a stream
    "spark.sql.caseSensitive": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
}
"""What must be the same wherever a program runs."""

_STARTED_HERE = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.memory": "2g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""Of a Spark that a command starts on this machine, when nothing else is said."""


def session(master: str | None = None, conf: Mapping[str, str] | None = None, *, name: str = "penstock") -> Any:
    """A session of its own: on the Spark that runs in this process, or on one that is started now."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return prepared(active, conf)
    _require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    where = master or os.environ.get("SPARK_MASTER") or "local[*]"
    local = _STARTED_HERE if where.startswith("local") else {}
    builder = SparkSession.builder.appName(name).master(where)
    for key, value in {**local, **SEMANTICS, **(conf or {})}.items():
        builder = builder.config(key, value)
    started = builder.getOrCreate()
    started.sparkContext.setLogLevel("FATAL")  # what fails is reported by this package
    return started


def prepared(spark: Any, conf: Mapping[str, str] | None = None) -> Any:
    """A session beside the given one, on the same Spark, with the settings that a program needs."""
    own = spark.newSession()
    for key, value in {**SEMANTICS, **(conf or {})}.items():
        own.conf.set(key, value)
    return own


def _require_java() -> None:
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise UserError(
            "P080",
            "Spark needs Java 17 or newer, and there is no `java` here",
            fix="on Debian and Ubuntu: apt-get install openjdk-17-jre-headless; or set JAVA_HOME",
        )
