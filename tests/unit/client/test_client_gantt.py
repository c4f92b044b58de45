"""The drawing of a step: golden texts, and an SVG that any parser reads."""

from __future__ import annotations

from xml.etree import ElementTree

from pipesvc.client.gantt import Row, gantt_text
from pipesvc.client.gantt_svg import gantt_svg
from pipesvc.core.actions import parse
from pipesvc.core.timeline import Span

SVG = "{http://www.w3.org/2000/svg}"


def _spans(*texts: str) -> list[Span]:
    """Each as "0F0 0.0 1.5"."""
    parts = [text.split() for text in texts]
    return [Span(parse(action), float(start), float(end)) for action, start, end in parts]


TWO_STAGES = _spans(
    "0F0 0 1", "0F1 1 2", "1F0 1.5 2.5", "1B0 2.5 4.5", "0B0 5 7", "1F1 4.5 5.5", "1B1 5.5 7.5", "0B1 8 10",
    "1N 7.5 7.5", "0U 10 11", "1U 7.5 8",
)  # fmt: skip
ROWS = [Row(name="a/cpu", stages=(0,)), Row(name="box/cpu", stages=(1,))]


def test_each_worker_has_a_row_and_each_action_its_cells() -> None:
    assert gantt_text(ROWS, TWO_STAGES, width=53).splitlines() == [
        "a/cpu    F0--F1--............B0======....B1======U===",
        "box/cpu  ......F0--B0======F1--B1======U=............",
        "         0 s                                     11 s",
        "F forward, B backward, U update",
    ]


def test_what_has_no_room_for_its_number_keeps_its_letter_and_nothing_is_lost_below_a_cell() -> None:
    assert gantt_text(ROWS, TWO_STAGES, width=9 + 11).splitlines()[0] == "a/cpu    FF...B0.B1U"
    many = [Span(parse(f"0F{index}"), index * 0.1, index * 0.1 + 0.1) for index in range(100)]
    row = gantt_text([Row(name="a", stages=(0,))], many, width=43).splitlines()[0]
    assert "." not in row


def test_a_worker_of_several_stages_says_which_one_runs() -> None:
    spans = _spans("0F0 0 1", "2F0 1 2", "2B0 2 4", "0B0 4 6")
    assert gantt_text([Row(name="a", stages=(0, 2))], spans, width=27).splitlines()[0] == "a  0F0-2F0-2B0=====0B0====="


def test_split_backwards_look_unlike_whole_ones() -> None:
    spans = _spans("0F0 0 1", "0I0 1 2", "0W0 2 3")
    text = gantt_text([Row(name="a", stages=(0,))], spans, width=15)
    assert text.splitlines()[0] == "a  F0--I0==W0~~"
    assert text.splitlines()[-1] == "F forward, I input backward, W weight backward"


def test_a_narrow_terminal_still_gets_ten_cells_and_an_empty_step_is_idle() -> None:
    assert gantt_text(ROWS, [], width=5).splitlines()[0] == "a/cpu    .........."


def test_the_svg_is_xml_with_a_title_and_a_bar_for_each_action_that_lasts() -> None:
    rows = [Row(name="a<b>&c", stages=(0,)), ROWS[1]]
    root = ElementTree.fromstring(gantt_svg(rows, TWO_STAGES, title="1F1B & more"))
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "1F1B & more"
    assert "a<b>&c" in [text.text for text in root.iter(f"{SVG}text")]
    told = [bar.findtext(f"{SVG}title") for bar in root.iter(f"{SVG}rect") if bar.find(f"{SVG}title") is not None]
    assert len(told) == 10
    assert "0B0: 5 s to 7 s" in told


def test_the_svg_keeps_within_its_frame() -> None:
    root = ElementTree.fromstring(gantt_svg(ROWS, TWO_STAGES, title="t"))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for bar in root.iter(f"{SVG}rect"):
        assert float(bar.get("x", 0)) + float(bar.attrib["width"]) <= width
        assert float(bar.get("y", 0)) + float(bar.attrib["height"]) <= height
