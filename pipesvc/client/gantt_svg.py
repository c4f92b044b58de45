"""A simulated step as an SVG image, for a page or a report.

Written by hand: a few dozen rectangles need no drawing library. Each kind of action has its own lightness, a border
and its letter, so the image reads in black and white too. Pure: spans in, text out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from xml.sax.saxutils import escape

from pipesvc.client.gantt import KIND_NAMES, Row
from pipesvc.core.actions import ActionKind
from pipesvc.core.schedule_search import seconds_text
from pipesvc.core.timeline import Span

# Pixels.
_WIDTH: Final = 1000
_ROW: Final = 28
_BAR: Final = 22
_MARGIN: Final = 10
_LETTER: Final = 7  # one letter of the 12-pixel font is at most so wide
_FILLS: Final = {
    ActionKind.FORWARD: "#eaf2fb",
    ActionKind.BACKWARD: "#8fb8e0",
    ActionKind.INPUT_BACKWARD: "#f6d7a5",
    ActionKind.WEIGHT_BACKWARD: "#c98f4a",
    ActionKind.NORM: "#bdbdbd",
    ActionKind.DECIDE: "#bdbdbd",
    ActionKind.UPDATE: "#5a5a5a",
}
_LIGHT_TEXT: Final = frozenset({ActionKind.UPDATE})


def gantt_svg(rows: Sequence[Row], spans: Sequence[Span], *, title: str) -> str:
    """The step as one SVG document with `title` for those who do not see it; each action tells its times."""
    left = 2 * _MARGIN + _LETTER * max(len(row.name) for row in rows)
    step_s = max((span.end_s for span in spans), default=0.0)
    scale = (_WIDTH - left - _MARGIN) / step_s if step_s else 0.0
    height = 2 * _MARGIN + _ROW * (len(rows) + 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for index, row in enumerate(rows):
        top = _MARGIN + _ROW * index
        lines.append(f'<text x="{_MARGIN}" y="{top + 15}">{escape(row.name)}</text>')
        lines.append(f'<rect x="{left}" y="{top}" width="{_WIDTH - left - _MARGIN}" height="{_BAR}" fill="#f7f7f7"/>')
        for span in spans:
            if span.action.stage in row.stages and span.end_s > span.start_s:
                lines += _bar(row, span, left + span.start_s * scale, top, (span.end_s - span.start_s) * scale)
    below = _MARGIN + _ROW * len(rows) + 15
    lines.append(f'<text x="{left}" y="{below}">0 s</text>')
    lines.append(f'<text x="{_WIDTH - _MARGIN}" y="{below}" text-anchor="end">{seconds_text(step_s)}</text>')
    lines += _legend(spans, left, below + 13)
    return "\n".join([*lines, "</svg>", ""])


def _bar(row: Row, span: Span, x: float, y: int, width: float) -> Iterator[str]:
    action = span.action
    yield (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{_FILLS[action.kind]}" stroke="#333333" '
        f'stroke-width="0.5"><title>{action}: {seconds_text(span.start_s)} to {seconds_text(span.end_s)}</title></rect>'
    )
    name = next((name for name in row.names_of(action) if len(name) * _LETTER <= width), "")
    if name:
        fill = "#ffffff" if action.kind in _LIGHT_TEXT else "#000000"
        yield f'<text x="{x + width / 2:.1f}" y="{y + 15}" text-anchor="middle" fill="{fill}">{name}</text>'


def _legend(spans: Sequence[Span], x: int, y: int) -> Iterator[str]:
    kinds = {span.action.kind for span in spans if span.end_s > span.start_s}
    for kind, name in KIND_NAMES.items():
        if kind in kinds:
            text = f"{kind.value} {name}"
            yield f'<rect x="{x}" y="{y}" width="12" height="12" fill="{_FILLS[kind]}" stroke="#333333"/>'
            yield f'<text x="{x + 18}" y="{y + 11}">{text}</text>'
            x += 30 + _LETTER * len(text)
