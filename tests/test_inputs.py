import numpy as np
import pytest
import torch

from smoothcert.errors import InputError
from smoothcert.inputs import as_float32, check_labels, check_values, content_id, split_batch


def test_8_bit_values_are_divided_by_255():
    assert np.array_equal(as_float32(np.array([0, 51, 255], np.uint8)), np.array([0, 0.2, 1], np.float32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floats_of_any_width_become_float32(dtype):
    x = torch.tensor([0.25, 0.5, 0.0], dtype=dtype)  # exact in all of them
    assert as_float32(x).dtype == np.float32
    assert np.array_equal(as_float32(x), [0.25, 0.5, 0.0])


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(2, dtype=torch.complex64),
        torch.ones(2, 2).to_sparse(),
        torch.ones(2, device="meta"),
        torch.ones(2, dtype=torch.int64),
        np.array([True, False]),
        np.array(["a"]),
        np.array([1 + 1j]),
        [[1.0], [1.0, 2.0]],
        None,
        "abc",
    ],
)
def test_what_is_no_dense_array_of_reals_is_refused(x):
    with pytest.raises(InputError, match="Expected"):
        as_float32(x)


def test_the_copy_is_fresh_contiguous_and_detached():
    x = torch.rand(4, 6, requires_grad=True).t()
    array = as_float32(x)
    assert array.flags["C_CONTIGUOUS"]
    assert np.array_equal(array, x.detach().contiguous().numpy())
    array[:] = 7
    assert not (x == 7).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_value_that_is_not_finite_is_named(bad):
    x = np.zeros((1, 4, 4), np.float32)
    x[0, 2, 3] = bad
    with pytest.raises(InputError, match=r"\(0, 2, 3\)"):
        check_values(x, None)


def test_a_float64_beyond_float32_is_refused_as_infinite():
    with pytest.raises(InputError, match="finite"):
        check_values(as_float32(np.array([1e300])), None)


def test_values_outside_the_declared_range_are_refused_with_advice():
    with pytest.raises(InputError, match=r"outside the declared range \[0, 1\].*1/255"):
        check_values(np.array([0.0, 254.0], np.float32), (0.0, 1.0))
    check_values(np.array([0.0, 254.0], np.float32), None)


@pytest.mark.parametrize(
    ("shape", "count", "batched"), [((5,), 1, False), ((3, 5), 3, True), ((1, 4, 4), 1, False), ((2, 1, 4, 4), 2, True)]
)
def test_the_number_of_dimensions_tells_one_input_from_a_batch(shape, count, batched):
    inputs, is_batch = split_batch(np.zeros(shape), None)
    assert (len(inputs), is_batch) == (count, batched)


def test_a_declared_shape_overrules_the_number_of_dimensions():
    assert len(split_batch(np.zeros((3, 5)), (3, 5))[0]) == 1
    assert len(split_batch(np.zeros((7, 3, 5)), (3, 5))[0]) == 7


@pytest.mark.parametrize(
    "shape", [(32, 32, 3), (1, 32, 32), (4, 32, 32), (3, 32, 31), (2, 2, 3, 32, 32), (3, 32), (0, 3, 32, 32)]
)
def test_a_shape_other_than_the_declared_one_is_refused(shape):
    with pytest.raises(InputError, match="got"):
        split_batch(np.zeros(shape), (3, 32, 32))


def test_an_ambiguous_shape_asks_for_a_declaration():
    with pytest.raises(InputError, match="input_shape"):
        split_batch(np.zeros((1, 1, 1, 1, 1)), None)


def test_equal_inputs_have_equal_names_and_shape_counts():
    a = np.zeros((2, 3), np.float32)
    assert content_id(a) == content_id(a.copy())
    assert content_id(a) != content_id(a.reshape(3, 2))
    assert content_id(a) != content_id(a + 1)


@pytest.mark.parametrize("labels", [[-1], [0, 10], [np.nan], ["cat"], [None], [1.0]])
def test_labels_that_are_no_class_are_refused(labels):
    with pytest.raises(InputError, match="labels"):
        check_labels(np.array(labels), 10)


def test_good_labels_pass():
    assert check_labels(torch.tensor([0, 9]), 10).tolist() == [0, 9]
