"""Iterations and graphs, against plain Python."""

import random
from collections import deque
from typing import Any

import numpy as np
import pytest

from penstock.batch import graphs
from penstock.batch.iterations import iterate, iterate_delta
from penstock.model.errors import UserError

VERTICES, EDGES = 40, 44


@pytest.fixture(scope="module")
def pairs() -> list[tuple[int, int]]:
    rng = random.Random(3)
    return sorted({(rng.randrange(VERTICES), rng.randrange(VERTICES)) for _ in range(EDGES)})


@pytest.fixture(scope="module")
def edges(pairs: list[tuple[int, int]], spark: Any) -> Any:
    return spark.createDataFrame(pairs, "source bigint, target bigint").persist()


def test_components(pairs: list[tuple[int, int]], edges: Any) -> None:
    parent = {vertex: vertex for pair in pairs for vertex in pair}

    def root(vertex: int) -> int:
        while parent[vertex] != vertex:
            vertex = parent[vertex]
        return vertex

    for one, other in pairs:
        low, high = sorted((root(one), root(other)))
        parent[high] = low
    result = graphs.connected_components(edges)
    assert {row.vertex: row.component for row in result.frame.collect()} == {each: root(each) for each in parent}
    assert len(set(map(root, parent))) > 1
    # Only those whose component changed are looked at again: less with every round in the end.
    assert sum(result.work) < result.rounds * result.work[0]
    assert result.work[-1] < result.work[0] / 4


def test_ranks(pairs: list[tuple[int, int]], edges: Any) -> None:
    vertices = sorted({vertex for pair in pairs for vertex in pair})
    number = {vertex: index for index, vertex in enumerate(vertices)}
    matrix = np.zeros((len(vertices), len(vertices)))
    for source, target in pairs:
        matrix[number[target], number[source]] = 1
    degrees = matrix.sum(axis=0)
    matrix = np.where(degrees > 0, matrix / np.maximum(degrees, 1), 1 / len(vertices))
    ranks = np.full(len(vertices), 1 / len(vertices))
    for _ in range(5):
        ranks = 0.15 / len(vertices) + 0.85 * matrix @ ranks
    result = graphs.page_rank(edges, times=5)
    found = {row.vertex: row.rank for row in result.frame.collect()}
    assert result.rounds == 5
    assert [found[vertex] for vertex in vertices] == pytest.approx(ranks.tolist())
    assert sum(found.values()) == pytest.approx(1)


def test_distances(pairs: list[tuple[int, int]], edges: Any, spark: Any) -> None:
    start = pairs[0][0]
    distances, waiting = {start: 0}, deque([start])
    while waiting:
        vertex = waiting.popleft()
        for source, target in pairs:
            if source == vertex and target not in distances:
                distances[target] = distances[vertex] + 1
                waiting.append(target)
    result = graphs.shortest_paths(edges, spark.createDataFrame([(start,)], "vertex bigint"))
    assert {row.vertex: row.distance for row in result.frame.collect()} == distances


def test_iterations_end_when_they_are_told_to(spark: Any) -> None:
    numbers = spark.createDataFrame([(1,)], "n bigint")
    doubled = iterate(numbers, lambda frame: frame.selectExpr("n * 2 as n"), until=lambda _, new: new.first().n > 30)
    assert (doubled.frame.first().n, doubled.rounds) == (32, 5)
    counted = iterate_delta(
        spark.createDataFrame([(1, 0)], "key bigint, n bigint"),
        spark.createDataFrame([(1, 0)], "key bigint, n bigint"),
        lambda _, work: work.selectExpr("key", "n + 1 as n"),
        key="key",
        times=3,
    )
    assert [tuple(row) for row in counted.frame.collect()] == [(1, 3)]
    with pytest.raises(UserError, match="P083"):
        iterate(numbers, lambda frame: frame)
    with pytest.raises(UserError, match="P083"):
        graphs.page_rank(numbers)
