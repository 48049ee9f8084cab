"""Graphs as DataFrames of edges, `source` and `target`: ranks, components, distances, by iterations."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from penstock.batch.iterations import Iterated, iterate, iterate_delta
from penstock.model.errors import UserError


def page_rank(
    edges: DataFrame, *, damping: float = 0.85, times: int | None = None, tolerance: float | None = None
) -> Iterated:
    """`vertex`, `rank`: how often one is at a vertex who follows edges, and else begins anywhere. Ranks add up to 1.

    `times` rounds, or until ranks change by no more than `tolerance` in all; 20 rounds if nothing is said. Who comes
    to a vertex without edges goes on anywhere.
    """
    _require_edges(edges)
    links = edges.select("source", "target").distinct()
    vertices = _vertices(links).localCheckpoint()
    count = vertices.count()
    if not count:
        return Iterated(vertices.withColumn("rank", F.lit(1.0)), 0)
    degrees = links.groupBy("source").agg(F.count("*").alias("degree"))
    weighted = links.join(degrees, "source").withColumn("share", F.lit(1.0) / F.col("degree")).localCheckpoint()
    leaves = vertices.join(degrees.select(F.col("source").alias("vertex")), "vertex", "left_anti").localCheckpoint()

    def step(ranks: DataFrame) -> DataFrame:
        lost = leaves.join(ranks, "vertex").agg(F.coalesce(F.sum("rank"), F.lit(0.0)).alias("lost"))
        given = (
            weighted.join(ranks.withColumnRenamed("vertex", "source"), "source")
            .groupBy(F.col("target").alias("vertex"))
            .agg(F.sum(F.col("rank") * F.col("share")).alias("given"))
        )
        anywhere = F.lit((1 - damping) / count) + F.lit(damping / count) * F.col("lost")
        rank = anywhere + F.lit(damping) * F.coalesce(F.col("given"), F.lit(0.0))
        return vertices.join(given, "vertex", "left").crossJoin(lost).select("vertex", rank.alias("rank"))

    def settled(before: DataFrame, after: DataFrame) -> bool:
        both = before.join(after.withColumnRenamed("rank", "next"), "vertex")
        moved = both.agg(F.sum(F.abs(F.col("rank") - F.col("next")))).first()
        return bool(moved[0] <= tolerance)

    begin = vertices.withColumn("rank", F.lit(1.0 / count))
    if tolerance is None:
        return iterate(begin, step, times=20 if times is None else times)
    return iterate(begin, step, times=times, until=settled)


def connected_components(edges: DataFrame) -> Iterated:
    """`vertex`, `component`: the smallest vertex that one can come to, whatever way edges point.

    A delta iteration: only vertices whose component became another one tell their neighbours.
    """
    _require_edges(edges)
    links = _both_ways(edges).localCheckpoint()
    begin = _vertices(links).withColumn("component", F.col("vertex"))

    def step(solution: DataFrame, work: DataFrame) -> DataFrame:
        told = (
            links.join(work.withColumnRenamed("vertex", "source"), "source")
            .groupBy(F.col("target").alias("vertex"))
            .agg(F.min("component").alias("least"))
        )
        lower = told.join(solution, "vertex").where(F.col("least") < F.col("component"))
        return lower.select("vertex", F.col("least").alias("component"))

    return iterate_delta(begin, begin, step, key="vertex")


def shortest_paths(edges: DataFrame, sources: DataFrame) -> Iterated:
    """`vertex`, `distance`: edges on the shortest way from any of `sources`, which have a column `vertex`.

    What cannot be reached is not there. A delta iteration.
    """
    _require_edges(edges)
    links = edges.select("source", "target").distinct().localCheckpoint()
    begin = sources.select("vertex").distinct().withColumn("distance", F.lit(0).cast("bigint"))

    def step(solution: DataFrame, work: DataFrame) -> DataFrame:
        reached = (
            links.join(work.withColumnRenamed("vertex", "source"), "source")
            .groupBy(F.col("target").alias("vertex"))
            .agg(F.min(F.col("distance") + 1).alias("distance"))
        )
        return reached.join(solution.select("vertex"), "vertex", "left_anti")

    return iterate_delta(begin, begin, step, key="vertex")


def _vertices(links: DataFrame) -> DataFrame:
    ends = links.select(F.col("source").alias("vertex")).union(links.select(F.col("target").alias("vertex")))
    vertices: DataFrame = ends.distinct()
    return vertices


def _both_ways(edges: DataFrame) -> DataFrame:
    there = edges.select("source", "target")
    back = edges.select(F.col("target").alias("source"), F.col("source").alias("target"))
    links: DataFrame = there.union(back).distinct()
    return links


def _require_edges(edges: DataFrame) -> None:
    missing = [name for name in ("source", "target") if name not in edges.columns]
    if missing:
        raise UserError(
            "P083",
            f'edges have no column "{missing[0]}"; they have {", ".join(edges.columns)}',
            fix="name the columns source and target",
        )
