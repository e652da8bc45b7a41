from __future__ import annotations

from collections import UserDict, namedtuple
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from perdure.structures import (
    as_shape,
    as_tensors,
    call,
    concatenate,
    get_structure,
    layout,
    leaves,
    load_structure,
    select,
    shapes,
)

X = torch.arange(12).view(4, 3)
NESTED = {"b": (X, {"c": X.float()}), "a": X[:, 0]}


def test_mappings_and_sequences_become_dicts_in_order_and_tuples() -> None:
    pair = namedtuple("pair", "first second")
    found = as_tensors(UserDict({"z": [X, X.numpy()], "a": pair(X, X)}))
    assert list(found) == ["a", "z"]
    assert type(found["a"]) is type(found["z"]) is tuple
    assert found["z"][1].equal(X)


@pytest.mark.parametrize(
    "array",
    [X.numpy()[::-1], np.broadcast_to(np.arange(3.0), (4, 3)), np.asfortranarray(X.numpy())],
)
def test_arrays_of_any_layout_become_tensors(array: Any) -> None:
    assert np.array_equal(as_tensors(array).numpy(), array)


@pytest.mark.parametrize(
    "value",
    [{}, (), "text", 3, {"a": 1.0}, {1: X}, [[1, 2]], None, np.array(["text"]), {"a": None}],
)
def test_anything_else_is_rejected(value: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|support"):
        as_tensors(value)


def test_messages_name_the_part_that_is_wrong() -> None:
    for value, message in (
        ("text", "inputs are of type str"),
        ({}, "inputs are an empty dict"),
        ({"a": None}, r"inputs\['a'\] is of type NoneType"),
        ({"a": [X, ()]}, r"inputs\['a'\]\[1\] is an empty tuple"),
    ):
        with pytest.raises(ValueError, match=message):
            as_tensors(value)


def test_structure_survives_a_state() -> None:
    inputs = as_tensors({"x/y": NESTED, "10": X})
    found = load_structure(*get_structure(inputs))
    assert layout(found) == layout(inputs)
    assert all(one.equal(other) for one, other in zip(leaves(found), leaves(inputs), strict=True))


def test_rows_are_selected_and_joined_in_every_tensor() -> None:
    inputs = as_tensors(NESTED)
    halves = [select(inputs, slice(0, 2)), select(inputs, torch.tensor([2, 3]))]
    for one, other in zip(leaves(concatenate(halves)), leaves(inputs), strict=True):
        assert one.equal(other)


def test_shapes_survive_json() -> None:
    assert shapes(X) == (3,)
    found = shapes(as_tensors(NESTED))
    assert found == {"a": (), "b": ((3,), {"c": (3,)})}
    assert as_shape({"b": [[3], {"c": [3]}], "a": []}) == found


class Sum(nn.Module):
    def __init__(self, wrap: Any = lambda logits: logits) -> None:
        super().__init__()
        self.wrap = wrap

    def forward(self, a: Tensor, b: Tensor) -> Any:
        return self.wrap(a - b)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: logits,
        lambda logits: {"logits": logits},
        lambda logits: UserDict(logits=logits),
        lambda logits: SimpleNamespace(logits=logits),
    ],
)
def test_networks_receive_arguments_and_return_logits(wrap: Any) -> None:
    assert call(Sum(wrap), (X, 2 * X)).equal(-X)
    assert call(Sum(wrap), {"b": X, "a": 2 * X}).equal(X)


@pytest.mark.parametrize("output", [(X,), {"scores": X}, None, SimpleNamespace(logits=None)])
def test_other_outputs_are_rejected(output: Any) -> None:
    with pytest.raises(ValueError, match="expected logits"):
        call(Sum(lambda _: output), (X, X))
