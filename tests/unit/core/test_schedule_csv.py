"""Schedule files: what torch writes is read, what is broken is refused with row, column and rule."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesvc.core.actions import Action
from pipesvc.core.schedule_csv import read, write
from pipesvc.core.schedules import FILE, homes, worker_actions
from pipesvc.errors import ErrorCode, PipesvcError
from tests import torch_tables

GOOD = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
SPLIT = "0F0,0F1,,0B0,0B1\n,1F0,1F1,1I0,1I1,1W0,1W1\n"
COMMS = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"


def _lists(schedule: str, places: tuple[int, ...], num_micro_batches: int, text: str = "") -> list[tuple[Action, ...]]:
    return [
        worker_actions(
            schedule,
            stages=[stage for stage, home in enumerate(places) if home == worker],
            num_stages=len(places),
            num_micro_batches=num_micro_batches,
            text=text,
        )
        for worker in sorted(set(places))
    ]


@pytest.mark.parametrize(
    ("file", "schedule", "places"),
    [
        ("gpipe.csv", "GPipe", (0, 1, 2, 3)),
        ("interleaved.csv", "Interleaved1F1B", (0, 1, 0, 1)),
        ("interleaved_comms.csv", "Interleaved1F1B", (0, 1, 0, 1)),
        ("zbv.csv", "ZBV", (0, 1, 1, 0)),
        ("zbv_comms.csv", "ZBV", (0, 1, 1, 0)),
    ],
)
def test_tables_of_torch_are_the_schedules_of_the_same_name(file: str, schedule: str, places: tuple[int, ...]) -> None:
    text = torch_tables.text(file)
    table = read(text, 4)
    assert (table.num_stages, table.num_micro_batches) == (4, 4)
    assert homes(FILE, num_stages=4, num_workers=9, text=text) == places
    assert _lists(FILE, places, 4, text) == _lists(schedule, places, 4)


def test_the_1f1b_table_of_torch_is_refused_for_its_last_worker() -> None:
    """Its row begins with micro-batch 1 and ends with one that is not there."""
    with pytest.raises(PipesvcError) as caught:
        read(torch_tables.text("1f1b.csv"), 4)
    assert caught.value.details.message == (
        "schedule file, row 4, column 7: 3F4 is of a micro-batch that is not among 4 micro-batches"
    )


@pytest.mark.parametrize("text", [GOOD, SPLIT, COMMS])
def test_writing_gives_the_same_table_again(text: str) -> None:
    table = read(text)
    assert read(write(table.rows)) == table
    assert write(read(GOOD).rows) == GOOD


@given(
    schedule=st.sampled_from(["naive", "GPipe", "1F1B", "ZBH1", "Interleaved1F1B", "ZBV"]),
    num_workers=st.integers(2, 4),
    num_micro_batches=st.integers(1, 8),
)
def test_every_schedule_goes_through_a_file(schedule: str, num_workers: int, num_micro_batches: int) -> None:
    places = homes(schedule, num_stages=2 * num_workers, num_workers=num_workers)
    lists = _lists(schedule, places, num_micro_batches)
    text = write(lists)
    assert homes(FILE, num_stages=len(places), num_workers=1, text=text) == places
    assert _lists(FILE, places, num_micro_batches, text) == lists


def test_a_short_step_leaves_out_what_is_not_there() -> None:
    lists = _lists(FILE, (0, 1), 1, GOOD)
    assert [" ".join(map(str, actions)) for actions in lists] == ["0F0 0B0 0U", "1F0 1B0 1U"]


def test_a_cell_may_be_quoted_as_a_whole() -> None:
    quoted = "\n".join(",".join(f'"{cell}"' for cell in row.split(",")) for row in GOOD.splitlines())
    assert read(f"{quoted}\n") == read(GOOD)
    assert read(GOOD.replace("\n", "\r")) == read(GOOD)


def test_blanks_and_sharded_parameters_mean_nothing() -> None:
    text = " 0F0 ,,0F1,0B0,0B1,0REDUCE_GRAD,\r\n0UNSHARD,1F0,1B0,,1F1,1B1,1RESHARD\r\n\r\n"
    assert read(text.replace("0UNSHARD", "1UNSHARD")) == read(GOOD)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # P11's own.
        ("0F0,0F1,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", "row 1, column 3: 0F1 is there twice"),
        ("0F0,0F1,0B0,0B1,0F2\n1F0,1B0,1F1,1B1\n", "row 1, column 5: 0F2 is of a micro-batch that is not among 2"),
        ("0F0,0F1,0B0,0B1x\n1F0,1B0,1F1,1B1\n", "row 1, column 4: '0B1x' is not an action"),
        ("0F0,0F1,0B0\n1F0,1B0,1F1,1B1,0B1\n", "row 2, column 5: 0B1 is on row 2, but stage 0 is also on row 1"),
        # Cells.
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1,1F\n", "row 2, column 5: '1F' is not an action"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F01,1B1\n", "row 2, column 3: '1F01' is not an action"),
        ("0F0;0F1,0B0,0B1\n", "row 1, column 1: '0F0;0F1' is not an action"),
        ("0F0,0B0,0U\n", "row 1, column 3: 0U is not for a file"),
        ("0F0,0SEND_F0junk\n", "row 1, column 2: '0SEND_F0junk' is not an action"),
        ("0F0,0UNSHARDED,0B0\n", "row 1, column 2: '0UNSHARDED' is not an action"),
        ("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", "is an overlapped pair (OVERLAP_F_B)"),
        ("0F0,0B0,7UNSHARD\n", "row 1, column 3: 7UNSHARD is of a stage that has no action on this row"),
        ("0F0,0B0,1UNSHARD\n1F0,1B0\n", "row 1, column 3: 1UNSHARD is of a stage that has no action on this row"),
        ('"0"F0,0B0\n', "row 1, column 1: '\"0\"F0' is not an action"),
        ('0F0,"0B0\n', "row 1, column 2: '\"0B0' is not an action"),
        ('0F0,"0B0\n"\n', "row 1, column 2: '\"0B0' is not an action"),
        ('"0F0,0B0"\n', "row 1, column 1: '\"0F0' is not an action"),
        ("0F0\u00a0,0B0\n", "row 1, column 1: '0F0\\xa0' is not an action"),
        ("0F0,0B0\u20281F0,1B0\n", "row 1, column 2: '0B0\\u20281F0' is not an action"),
        ("0F0,0B0\f1F0,1B0\n", "row 1, column 2: '0B0\\x0c1F0' is not an action"),
        ("0F0,0B0\x1c\n", "row 1, column 2: '0B0\\x1c' is not an action"),
        ("\ufeff0F0,0B0\n", "the file: begins with a byte order mark (BOM)"),
        # Rows.
        ("", "the file: has no action"),
        (",,\n,\n", "the file: has no action"),
        ("0F0,0B0\n\n1F0,1B0\n", "row 2: has no action"),
        ("0F0,0B0\n1UNSHARD,\n2F0,2B0\n", "row 2: has no action"),
        ("\0", "row 1, column 1: '\\x00' is not an action"),
        # Counts.
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n", "the file: the lists lack 1B1"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1B1\n", "the file: the lists lack 1F1"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1I1\n", "the file: the lists lack 1W1"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1,1I1,1W1\n", "row 2, column 5: 1I1 is beside 1B1"),
        ("0F0,0F1,0B0,0B1\n2F0,2B0,2F1,2B1\n", "row 2, column 1: 2F0 is of stage 2, and stage 1 has no action"),
        (
            "0F0,0F1,0B0,0B1\n999999999F0,1B0,1F1,1B1\n",
            "row 2, column 1: 999999999F0 is of stage 999999999, and stage 2 has no action",
        ),
        ("0F0,1F1,2B1\n", "the file: 3 stages and 2 micro-batches are named by 3"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F999999999,1B1\n", "row 2, column 3: 1F999999999 is of a micro-batch that is not"),
        ("0F0,0B0\n1F0,1B0\n", "the file: it has 1 micro-batches, and a step has micro_batches=2"),
        # Order.
        ("0F0,0F1,0B0,0B1\n,1F1,1B1,1F0,1B0\n", "row 2, column 4: 1F0 comes after 1F1"),
        ("0F0,0F1,0B1,0B0\n1F0,1F1,1B0,1B1\n", "row 1, column 4: 0B0 comes after 0B1"),
        ("0F0,0F1,0B0,0B1\n1F0,1F1,1I0,1B1,1W0\n", "row 2, column 5: 1W0 comes after 1B1"),
        ("0F0,0F1,0B0,0B1\n1B0,1F0,1F1,1B1\n", "row 1, column 3: the lists lock each other up"),
        (
            "0F0,,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n",
            "row 1, column 3: the lists lock each other up: row 1 is blocked at 0B0",
        ),
        # Communication.
        (COMMS.replace("1RECV_F1,", ""), "row 2, column 5: 1F1 comes before its 1RECV_F1"),
        (COMMS.replace("0SEND_F1,", ""), "the file: row 1 lacks 0SEND_F1"),
        (COMMS.replace("0F1,0SEND_F1", "0SEND_F1,0F1"), "row 1, column 3: 0SEND_F1 comes before the action"),
        (COMMS.replace("0RECV_B1,0B1", "0B1,0RECV_B1"), "row 1, column 7: 0B1 comes before its 0RECV_B1"),
        (COMMS.replace("0SEND_F1", "0SEND_F1,0SEND_F1"), "row 1, column 5: 0SEND_F1 is there twice"),
        (COMMS.replace("0SEND_F1", "0SEND_F1,0SEND_B1"), "row 1, column 5: 0SEND_B1 carries nothing"),
        (COMMS.replace("0SEND_F1", "0SEND_F1,0SEND_F7"), "row 1, column 5: 0SEND_F7 carries nothing"),
        (COMMS.replace("0SEND_F1", "0SEND_F1,1RECV_F0"), "row 1, column 5: 1RECV_F0 is not on the row of stage 1"),
        (COMMS.replace("0SEND_F1", "0SEND_F1,0RECV_F1"), "row 1, column 5: 0RECV_F1 carries nothing"),
        ("0F0,0F1,0SEND_F0,1F0,1F1,1B0,0B0,1B1,0B1\n", "row 1, column 3: 0SEND_F0 carries nothing from one row"),
        (
            COMMS.replace("0SEND_F0,0F1,0SEND_F1", "0F1,0SEND_F1,0SEND_F0"),
            "row 2, column 1: 1RECV_F0 would take what 0SEND_F1 has sent before",
        ),
        (
            COMMS.replace("0F1,0SEND_F1,0RECV_B0", "0F1,0RECV_B0,0SEND_F1").replace(
                "1B0,1SEND_B0,1RECV_F1,1F1", "1RECV_F1,1F1,1B0,1SEND_B0"
            ),
            "row 1, column 4: the lists lock each other up: row 1 is blocked at 0RECV_B0, which waits for 1SEND_B0; "
            "row 2 is blocked at 1RECV_F1, which waits for 0SEND_F1",
        ),
    ],
)
def test_p11_broken_files_are_refused_with_row_column_and_rule(text: str, said: str) -> None:
    with pytest.raises(PipesvcError) as caught:
        read(text, 2)
    assert caught.value.code is ErrorCode.INVALID_PLAN
    assert said in caught.value.details.message
    assert caught.value.details.message.startswith("schedule file, ")


def test_p11_what_is_missing_or_too_many_is_not_asked_before_the_micro_batches_are_known() -> None:
    for text in ("0F0,0F1,0B0,0B1,0F2\n1F0,1B0,1F1,1B1\n", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n", "0F0,0F999999999,0B0\n"):
        assert read(text).rows
        with pytest.raises(PipesvcError):
            read(text, 2)
    with pytest.raises(PipesvcError, match="row 1, column 2: 0F0 is there twice"):
        read("0F0,0F0,0B0\n")


@given(st.text(alphabet='0123FBIW,\n SENDRCV_;()"x', max_size=60))
def test_any_text_is_a_table_or_refused(text: str) -> None:
    with contextlib.suppress(PipesvcError):
        table = read(text)
        assert read(write(table.rows)) == table
