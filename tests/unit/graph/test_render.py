"""Graphs for people."""

import xml.etree.ElementTree as ElementTree

import msgspec
import polars as pl
import pytest

from penstock.graph import as_html, as_svg, as_text, outline
from penstock.model import specs

GOLDEN = """\
test: bounded, parallelism 2, max parallelism 128

bids  x2
  bids: read table, event time ts
    cheap, double: filter predicate
                   with_columns twice
      (auction: Int64, price: Int64, ts: Datetime(us), twice: Int64)
      columns: select auction, price
        (auction: Int64, price: Int64)
      all: write table
        (auction: Int64, price: Int64, ts: Datetime(us), twice: Int64)

top  x2
  <- hash(auction) from bids / top-columns-0
  top: aggregate top=max(price) in tumbling 10us by auction
    out: write table
      (auction: Int64, window_start: Datetime(us), window_end: Datetime(us), top: Int64)

warning: look here
"""


@pytest.fixture
def graph(program):
    program.source("bids", "auction", "price", "ts", event_time=specs.EventTime(column="ts"))
    program.filter("cheap", "bids")
    program.with_columns("double", "cheap", twice=pl.col("price") * 2)
    program.window("top", "double", "auction", processing_time=True)
    program.sink("all", "double")
    program.sink("out", "top")
    return msgspec.structs.replace(program.plan(parallelism=2), warnings=("look here",))


def test_the_text_shows_vertices_inputs_operators_and_columns(graph):
    assert as_text(graph) == GOLDEN


def test_the_outline_has_what_a_drawing_needs(graph):
    found = outline(graph)
    assert [(vertex.id, vertex.parallelism, vertex.column) for vertex in found.vertices] == [
        ("bids", 2, 0),
        ("top", 2, 1),
    ]
    assert [(line.depth, line.uid, line.text) for line in found.vertices[1].lines] == [
        (0, "top", "top"),
        (1, "", "aggregate top=max(price) in tumbling 10us by auction"),
        (1, "out", "out"),
        (2, "", "write table"),
    ]
    assert [(edge.source, edge.target, edge.label) for edge in found.edges] == [("bids", "top", "hash(auction)")]


def test_the_svg_is_well_formed_and_names_every_vertex(graph):
    root = ElementTree.fromstring(as_svg(graph))
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "bids  x2" in texts
    assert "hash(auction)" in texts
    assert len(root.findall("{http://www.w3.org/2000/svg}path")) == 1


def test_boxes_do_not_overlap(graph):
    root = ElementTree.fromstring(as_svg(graph))
    boxes = [
        [float(element.get(side, "0")) for side in ("x", "y", "width", "height")]
        for element in root.iter("{http://www.w3.org/2000/svg}rect")
    ]
    assert len(boxes) == 2
    for index, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, _, _ in boxes[index + 1 :]:
            assert other_x >= x + width or other_y >= y + height


def test_text_of_the_user_is_shown_as_text(program):
    evil = "<script>alert('x')</script>"
    program.source(evil)
    program.sink("out", evil)
    graph = msgspec.structs.replace(program.plan(), name=evil, warnings=(evil,))
    for page in (as_svg(graph), as_html(graph)):
        assert "<script" not in page
        assert "&lt;script&gt;" in page


def test_the_page_stands_alone(graph):
    page = as_html(graph)
    assert page.startswith("<!doctype html>")
    assert "<svg" in page
    for outside in ("<link", "<script", "src=", "url(http"):
        assert outside not in page


def test_long_descriptions_are_cut(program):
    program.source("bids", *(f"column_{index}" for index in range(50)))
    program.sink("out", "bids")
    assert max(map(len, as_text(program.plan()).splitlines())) <= 110
