"""Layer-wise trace files: what is read, what is written, and where a bad row is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stashtrace.errors import FormatError, MissingDataError, StashtraceError
from stashtrace.replay.ssgd import read_layers, write_layers
from stashtrace.replay.ssgd.workload import typical

TWO = """
0 conv1     800.5 1600 400 37632
1 3x3 relu   91    120 0   0
0 conv1     810.5 1602 -   37632
1 3x3 relu   93    130 0   0
"""
#: As ASTRA-sim 1 reads it; a writer of such files leaves the sum of forward before every name but the first.
ASTRA = """DATA
3
features.0\t-1\t4000\tNONE\t0\t8000\tNONE\t0\t4500\tALLREDUCE\t92928\t0
9000features.3\t-1\t3000\tNONE\t0\t2500\tNONE\t0\t3900\tALLREDUCE\t1228800\t10
9000classifier.6\t-1\t2000\tNONE\t0\t2100\tNONE\t0\t2200\tALLREDUCE\t2654208\t5
9000"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "net.txt"


def test_rows_of_two_iterations(file: Path) -> None:
    file.write_text(TWO)
    first, second = read_layers(file)
    assert first.names == ("conv1", "3x3 relu")
    assert first.forward_ns.tolist() == [800_500, 91_000]
    assert first.communication_ns.tolist() == [400_000, 0]
    assert first.gradient_bytes.tolist() == [37632, 0]
    assert second.backward_ns.tolist() == [1_602_000, 130_000]
    assert np.isnan(second.communication_ns[0])
    assert second.measured_ns is None
    middle = typical([first, first, second])
    assert middle.forward_ns.tolist() == [800_500, 91_000]


@pytest.mark.parametrize(
    "text",
    [
        "id\tname\tforward_ms\tbackward_us\tcommunication_ns\tsize_bytes\n4\t4x4 a, b\t1.5\t2\t3\t4\n",
        "# a comment\n\nID,Name,forward_ms,backward,communication_ns,size\n4,4x4 a b,1.5,2,3,4",
    ],
)
def test_column_names_give_units(file: Path, text: str) -> None:
    file.write_text(text)
    (one,) = read_layers(file)
    assert [one.forward_ns[0], one.backward_ns[0], one.communication_ns[0], one.gradient_bytes[0]] == [1.5e6, 2e3, 3, 4]
    assert one.names[0].startswith("4x4 a")


def test_layers_stand_in_the_order_of_their_ids(file: Path) -> None:
    file.write_text("7 last 1 1 1 1\n2 first 2 2 2 2\n7 last 3 3 3 1\n2 first 4 4 4 2\n")
    first, second = read_layers(file)
    assert first.names == second.names == ("first", "last")
    assert second.forward_ns.tolist() == [4000, 3000]


def test_what_is_written_is_read_again(file: Path) -> None:
    text = "# io_us 12.5\n# copy_ms 2\n# update_ns 7\n" + TWO
    file.write_text(text)
    before = read_layers(file)
    assert (before[0].io_ns, before[0].copy_ns, before[0].update_ns) == (12_500, 2e6, 7)
    write_layers(file, before)
    after = read_layers(file)
    assert len(after) == 2
    for one, other in zip(before, after, strict=True):
        assert one.names == other.names
        for name in ("forward_ns", "backward_ns", "communication_ns", "gradient_bytes"):
            assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True)
        assert (one.io_ns, one.copy_ns, one.update_ns) == (other.io_ns, other.copy_ns, other.update_ns)


def test_a_workload_of_astra_sim(file: Path) -> None:
    file.write_text(ASTRA)
    (one,) = read_layers(file)
    assert one.names == ("features.0", "features.3", "classifier.6")
    assert one.forward_ns.tolist() == [4000, 3000, 2000]
    assert one.backward_ns.tolist() == [12_500, 6400, 4300]
    assert one.gradient_bytes.tolist() == [92928, 1228800, 2654208]
    assert one.update_ns == 15
    assert one.measured_ns is None


def test_a_number_that_belongs_to_a_name_stays(file: Path) -> None:
    file.write_text(ASTRA.replace("9000classifier", "1x1classifier"))
    assert read_layers(file)[0].names == ("features.0", "9000features.3", "1x1classifier.6")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no layers"),
        ("# nothing\n", "has no layers"),
        ("0 a 1 2 3\n", ":1: 5 fields instead of 6"),
        ("0 a 1 2 3 4\nx b 1 2 3 4\n", ":2: 'x' is not the id of a layer"),
        ("0 a 1 2 3 4\n1 b 1 fast 3 4\n", ":2: backward is 'fast', not a number"),
        ("0 a 1 -2 3 4\n", ":1: backward cannot be -2"),
        ("0 a inf 2 3 4\n", ":1: forward cannot be inf"),
        ("0 a 1 2 3 -\n", ":1: size is '-', not a number"),
        ("0 a 1 2 3 4\n1 b 1 2 3 4\n0 a 1 2 3 4\n", ":3: iteration 2 ends here without layer 1"),
        ("0 a 1 2 3 4\n1 b 1 2 3 4\n0 a 1 2 3 4\n0 a 1 2 3 4\n", ":3: iteration 2 ends here without layer 1"),
        ("0 a 1 2 3 4\n0 b 1 2 3 4\n", ":2: layer 0 is 'b' here and 'a' in the first iteration"),
        ("0 a 1 2 3 4\n0 a 1 2 3 5\n", ":2: layer 0 has another size"),
        ("0 a 1 2 3 4\n0 a 1 2 3 4\n1 b 1 2 3 4\n", ":3: layer 1 is 'b' here and 'none' in the first iteration"),
        ("id name forward_h backward communication size\n", ":1: column 'forward_h' instead of forward"),
        ("id name forward backward size\n", ":1: 5 column names instead of 6"),
        ("# io_us soon\n0 a 1 2 3 4\n", ":1: io_us is 'soon', not a number"),
        (ASTRA.replace("DATA", "MODEL"), ":1: MODEL parallelism"),
        (ASTRA.replace("\n3\n", "\n145\n"), "states 145 layers and has 3"),
        (ASTRA.replace("\t0\n", "\n", 1), ":3: 11 fields instead of 12"),
        (ASTRA.replace("2500", "late"), ":4: a time or size is not a number"),
        (ASTRA.replace("2500", "-1"), ":4: a time or size is negative"),
        ("DATA\n", "states no number of layers and has 0"),
        ("DATA\n0\n", "has no layers"),
        (f"{'9' * 5000} a 1 2 3 4\n", "is not the id of a layer"),
        (f"DATA\n{'9' * 5000}\n", "layers and has 0"),
        ("id name forward_s backward communication size\n0 a 1e300 2 3 4\n", ":2: forward cannot be 1e300"),
    ],
)
def test_a_bad_row_is_named_with_its_line(file: Path, text: str, complaint: str) -> None:
    file.write_text(text)
    with pytest.raises(FormatError) as error:
        read_layers(file)
    assert str(error.value).startswith(str(file))
    assert complaint in str(error.value)
    assert error.value.hint


def test_a_mark_before_the_text_is_no_part_of_it(file: Path) -> None:
    file.write_text("id,name,forward_us,backward_us,communication_us,size_bytes\n0,a,1,2,3,4\n", encoding="utf-8-sig")
    (one,) = read_layers(file)
    assert (one.names, one.backward_ns.tolist()) == (("a",), [2000])


def test_files_that_cannot_be_read_or_written(tmp_path: Path, file: Path) -> None:
    with pytest.raises(MissingDataError, match="cannot read"):
        read_layers(tmp_path / "none")
    file.write_bytes(b"\xff\xfe0 a")
    with pytest.raises(FormatError, match="not a text file"):
        read_layers(file)
    file.write_text(TWO)
    with pytest.raises(StashtraceError, match="cannot write"):
        write_layers(tmp_path / "no" / "file", read_layers(file))
