"""A plan and its comparison with a run, as tables for people. Pure: values in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipesvc.client.compare import Line
from pipesvc.client.report import table
from pipesvc.core.memory import bytes_text
from pipesvc.core.plan_report import LinkReport, PlaceReport, PlanReport, StageReport
from pipesvc.core.schedule_search import seconds_text

_STAGE_HEADER = (
    "STAGE",
    "WORKER/DEVICE",
    "LAYERS",
    "PARAMETERS",
    "FORWARD",
    "BACKWARD",
    "UPDATE",
    "ALIVE",
    "SENDS ON",
    "SENT BACK",
)
_LINK_HEADER = ("LINK", "WAY", "BYTES", "HOP")
_PLACE_HEADER = ("WORKER/DEVICE", "IDLE", "FINGERPRINT", "MEMORY")


def plan_text(report: PlanReport) -> str:
    """What the plan is, what it costs, why it was chosen, and what to beware of."""
    return "\n".join(_plan_lines(report))


def title(report: PlanReport) -> str:
    """The plan in one line."""
    in_flight = f", in flight {report.in_flight}" if report.in_flight else ""
    return (
        f"{report.schedule}, {report.micro_batches} micro-batches{in_flight}: {seconds_text(report.step_s)} a step "
        f"predicted, bubble {_part_text(report.bubble)}"
    )


def comparison_text(lines: Sequence[Line]) -> str:
    """Predicted beside measured; the ratio is measured by predicted."""
    return table(("WHERE", "WHAT", "PREDICTED", "MEASURED", "RATIO"), map(_comparison_row, lines))


def _plan_lines(report: PlanReport) -> Iterator[str]:
    yield title(report)
    yield table(_STAGE_HEADER, map(_stage_row, report.stages))
    yield table(_PLACE_HEADER, map(_place_row, report.places))
    if any(link.num_bytes for link in report.links):
        yield table(_LINK_HEADER, [_link_row(link) for link in report.links if link.num_bytes])
    yield from (f"chosen: {reason}" for reason in report.reasons)
    if report.runner_up:
        yield f"runner-up: {report.runner_up}"
    yield from (f"WARNING: {warning}" for warning in report.warnings)


def _stage_row(stage: StageReport) -> tuple[str, ...]:
    return (
        f"{stage.index}" if stage.label == f"stage:{stage.index}" else f"{stage.index} ({stage.label})",
        stage.place,
        stage.first_layer if stage.num_layers == 1 else f"{stage.first_layer}..{stage.last_layer} ({stage.num_layers})",
        bytes_text(stage.parameter_bytes),
        seconds_text(stage.forward_s),
        seconds_text(stage.backward_s),
        seconds_text(stage.update_s),
        str(stage.peak_in_flight),
        _sent_text(stage.output_bytes, stage.hop_s),
        _sent_text(stage.gradient_bytes, stage.gradient_hop_s),
    )


def _sent_text(num_bytes: int, hop_s: float) -> str:
    return f"{bytes_text(num_bytes)} in {seconds_text(hop_s)}" if num_bytes else "-"


def _place_row(place: PlaceReport) -> tuple[str, ...]:
    return place.place, _part_text(place.idle), place.fingerprint or "unknown", place.memory_text


def _link_row(link: LinkReport) -> tuple[str, ...]:
    return link.link, link.way or "not known", bytes_text(link.num_bytes), seconds_text(link.hop_s)


def _comparison_row(line: Line) -> tuple[str, ...]:
    ratio = "-"
    if line.predicted and line.measured is not None:
        ratio = f"{line.measured / line.predicted:.2f}"
    return line.where, line.what, _line_text(line.predicted, line.unit), _line_text(line.measured, line.unit), ratio


def _line_text(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    match unit:
        case "s":
            return seconds_text(value)
        case "bytes":
            return bytes_text(round(value))
        case _:
            return _part_text(value)


def _part_text(part: float) -> str:
    return f"{100 * part:.1f} %"
