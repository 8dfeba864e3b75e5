from __future__ import annotations

import numpy as np
import pytest

from smoothcert.data.label_files import find_label_file, label_files, read_labels
from smoothcert.data.wnids import wnids
from smoothcert.errors import InputError

FILES = ("00_n01440764_val_3.JPEG", "01_n01443537_val_1.JPEG", "plain.png")


def written(tmp_path, text, name="labels.csv"):
    path = tmp_path / name
    path.write_text(text, newline="")
    return path


@pytest.mark.parametrize("file_column", ["file", "filename", "path", "image", "File"])
@pytest.mark.parametrize("label_column", ["label", "class", "target"])
def test_a_table_is_read_by_the_names_of_its_columns(tmp_path, file_column, label_column):
    text = f"n, {label_column} ,{file_column}\r\n9,5,plain.png\r\n9,0,val_3.JPEG\r\n9,1,01_n01443537_val_1.JPEG\r\n"
    known = label_files(written(tmp_path, text), FILES)
    assert known.labels.tolist() == [0, 1, 5]
    assert known.classes is None
    assert known.sha256 is None


def test_names_become_numbers_in_sorted_order(tmp_path):
    known = label_files(written(tmp_path, "file\tlabel\na\tdog\nb\tcat\nc\tdog\n"), ("a", "b", "c"))
    assert known.labels.tolist() == [1, 0, 1]
    assert known.classes == ("cat", "dog")


def test_wordnet_ids_become_imagenets_labels(tmp_path):
    known = label_files(written(tmp_path, f"file,class\na,{wnids()[500]}\nb,{wnids()[3]}\n"), ("a", "b"))
    assert known.labels.tolist() == [500, 3]
    assert known.classes == wnids()


def test_a_column_of_wordnet_ids_must_agree_with_the_labels(tmp_path):
    good = f"file,label,wnid\na,7,{wnids()[7]}\n"
    assert label_files(written(tmp_path, good), ("a",)).classes == wnids()
    with pytest.raises(InputError, match=f"Expected label 8 for {wnids()[8]} .* got 7"):
        label_files(written(tmp_path, f"file,label,wnid\na,7,{wnids()[8]}\n"), ("a",))
    with pytest.raises(InputError, match=r"Expected label none for n1"):
        label_files(written(tmp_path, "file,label,wnid\na,7,n1\n"), ("a",))


def test_hashes_come_in_the_order_of_the_files(tmp_path):
    known = label_files(written(tmp_path, "file,label,sha256\nb,1,bb\na,0,aa\n"), ("a", "b"))
    assert known.sha256 == ("aa", "bb")


def test_one_number_per_line_is_taken_in_the_order_of_the_files(tmp_path):
    assert label_files(written(tmp_path, "4\n0\n17\n"), FILES).labels.tolist() == [4, 0, 17]


def test_lines_of_a_name_and_a_number_are_matched_by_name(tmp_path):
    path = written(tmp_path, "val_1.JPEG 65\nval_3.JPEG\t7\nplain.png  0\n")
    assert label_files(path, FILES).labels.tolist() == [7, 65, 0]


def test_quoted_names_may_hold_separators_and_line_breaks(tmp_path):
    files = ("a,b\n=cmd().png", 'say "hi".png')
    path = written(tmp_path, 'file,label\n"a,b\n=cmd().png",3\n"say ""hi"".png",4\n')
    assert label_files(path, files).labels.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "got an empty file"),
        ("\n \n", "got an empty file"),
        ("1\n2\n", "Expected 3 labels .*got 2"),
        ("name,value\nx,1\n", "Expected in .* a header with a column of file or"),
        ("file,label\nplain.png,1\n", "there is none for 00_n01440764_val_3.JPEG"),
        ("file,label\nnone.png,1\n", "'none.png' is no file"),
        ("file,label\nplain.png,1\nplain.png,1\n", "'plain.png' is a file named before"),
        ("file,label\nplain.png\n", "Expected 2 values in every row .* got 1 in row 1"),
        ("file,label\nplain.png,1,2\n", "Expected 2 values in every row"),
        ("file,label\nPLAIN.png,1\n", "is no file"),
        ("file,label\nain.png,1\n", "is no file"),
        ('file,label\n"plain.png,1\n', "damaged"),
    ],
)
def test_a_label_file_that_does_not_fit_says_where(tmp_path, text, said):
    path = written(tmp_path, text)
    with pytest.raises(InputError, match=said) as caught:
        label_files(path, FILES)
    assert str(path) in str(caught.value)


def test_an_ending_that_several_files_share_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"'1.png' is several files"):
        label_files(written(tmp_path, "file,label\n1.png,0\n1.png,1\n"), ("a_1.png", "b_1.png"))
    exact = label_files(written(tmp_path, "file,label\n1.png,0\na_1.png,1\n"), ("1.png", "a_1.png"))
    assert exact.labels.tolist() == [0, 1]


@pytest.mark.parametrize("bad", ["nan", "1.5", "", "inf", "1e3", "0x1", "٣"])
def test_labels_that_are_neither_all_numbers_nor_all_names_are_refused(tmp_path, bad):
    path = written(tmp_path, f"file,label\na,1\nb,{bad}\n")
    with pytest.raises(InputError, match=r"all whole numbers or all names"):
        label_files(path, ("a", "b"))


def test_a_name_that_would_steer_the_terminal_is_escaped(tmp_path):
    with pytest.raises(InputError) as caught:
        label_files(written(tmp_path, "file,label\n\x1b]0;owned\x07,1\n"), ("a",))
    assert "\x1b" not in str(caught.value)
    assert "\\x1b]0;owned\\x07" in str(caught.value)


def test_customary_names_are_found(tmp_path):
    assert find_label_file(tmp_path) is None
    written(tmp_path, "1", "index.tsv")
    assert find_label_file(tmp_path).name == "index.tsv"


def test_labels_alone_are_read_from_npy_and_text(tmp_path):
    np.save(tmp_path / "y.npy", np.array([3, 1], np.int16))
    assert read_labels(tmp_path / "y.npy", 2).tolist() == [3, 1]
    assert read_labels(written(tmp_path, "3\n1\n"), 2).tolist() == [3, 1]
    with pytest.raises(InputError, match=r"Cannot read the label file"):
        read_labels(tmp_path / "none.txt", 2)
    with pytest.raises(InputError, match=r"Expected a whole number per line .* got '-1x' in line 2"):
        read_labels(written(tmp_path, "3\n-1x\n"), 2)
