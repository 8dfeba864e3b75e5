"""run.json: written once, bound to every row, and any change to it is noticed."""

import json

import pytest

from run_fixtures import FLAGS
from smoothcert.errors import OutputError, ResumeError
from smoothcert.runs.manifest import FILE, Manifest, differences, read_manifest

pytest_plugins = ["run_fixtures"]

VALUES = {
    "format": 1,
    "kind": "certify",
    "sigma": 0.5,
    "alpha": 0.001,
    "procedure": {"name": "FixedN", "n": 64},
    "model": {"source": "model.safetensors", "weights_hash": "sha256:0", "classes": ["σ", "ü"]},
    "indices": [3, 1, 2],
    "host": "here",
    "python": "3.11",
    "created": "2024-02-29T00:00:00+00:00",
    "engine": "local",
    "workers": None,
}


def test_it_is_read_back_as_it_was_written(tmp_path):
    manifest = Manifest(VALUES)
    manifest.write(tmp_path)
    found = read_manifest(tmp_path)
    assert found.values == VALUES
    assert list(found.values) == list(VALUES)
    assert (found.run_id, found.kind, found.indices) == (manifest.run_id, "certify", [3, 1, 2])


def test_it_can_be_read_by_people(tmp_path):
    lines = Manifest(VALUES).text.splitlines()
    assert len(lines) == len(VALUES) + 3  # one per name, the hash, and the braces
    assert ' "sigma": 0.5,' in lines
    assert "σ" in Manifest(VALUES).text


def leaves(values, path=()):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name)


def edited(values, path, value):
    if not path:
        return value
    return {**values, path[0]: edited(values[path[0]], path[1:], value)}


def test_every_value_of_a_real_run_that_is_edited_by_hand_is_noticed(whole, tmp_path):
    values = json.loads((whole / FILE).read_text())
    paths = list(leaves(values))
    assert len(paths) > 30
    for path in paths:
        for value in ("edited", 0.75, None, [], {}, [1, 2], True):
            if repr(value) == repr(get(values, path)):
                continue
            (tmp_path / FILE).write_text(json.dumps(edited(values, path, value)))
            with pytest.raises(ResumeError, match=r"altered|Expected a run of format"):
                read_manifest(tmp_path)


def get(values, path):
    for name in path:
        values = values[name]
    return values


@pytest.mark.parametrize("name", sorted(VALUES))
def test_every_value_that_is_removed_is_noticed(tmp_path, name):
    values = json.loads(Manifest(VALUES).text)
    del values[name]
    (tmp_path / FILE).write_text(json.dumps(values))
    with pytest.raises(ResumeError):
        read_manifest(tmp_path)


def test_a_value_that_is_added_is_noticed(tmp_path):
    (tmp_path / FILE).write_text(json.dumps({**json.loads(Manifest(VALUES).text), "more": 1}))
    with pytest.raises(ResumeError, match="altered"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_noticed(tmp_path, constant):
    (tmp_path / FILE).write_text(Manifest(VALUES).text.replace('"sigma": 0.5', f'"sigma": {constant}'))
    with pytest.raises(ResumeError, match="damaged"):
        read_manifest(tmp_path)


TEXT = Manifest(VALUES).text.encode()


@pytest.mark.parametrize("length", range(0, len(TEXT) - 1, 7))
def test_a_file_that_was_cut_is_damaged(tmp_path, length):
    (tmp_path / FILE).write_bytes(TEXT[:length])
    with pytest.raises(ResumeError):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[]", b"1", b"{}", b'{"format": 1}', b"\xff\xfe", b"\0" * 100, b"[" * 100_000, b'{"a":' * 100_000],
)
def test_what_is_no_manifest_is_an_error_of_ours(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ResumeError):
        read_manifest(tmp_path)


def test_a_manifest_that_is_not_there_or_no_file_is_an_error_of_ours(tmp_path):
    with pytest.raises(ResumeError, match="there is no"):
        read_manifest(tmp_path)
    with pytest.raises(ResumeError, match="there is no"):
        read_manifest(tmp_path / "nowhere")
    (tmp_path / FILE).mkdir()
    with pytest.raises(ResumeError, match="Cannot read"):
        read_manifest(tmp_path)


def test_a_run_of_a_later_format_says_which_version_to_use(tmp_path):
    Manifest({**VALUES, "format": 2}).write(tmp_path)
    with pytest.raises(ResumeError, match="version of smoothcert that made it"):
        read_manifest(tmp_path)


def test_it_can_hold_any_name_a_file_can_have(tmp_path):
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    Manifest({**VALUES, "data": {"name": name}}).write(tmp_path)
    assert read_manifest(tmp_path).values["data"]["name"] == name


def test_where_and_when_a_run_was_made_does_not_make_another_run():
    other = {
        **VALUES,
        "host": "there",
        "python": "3.13",
        "created": "1970-01-01T00:00:00+00:00",
        "engine": "ray",
        "workers": 8,
        "model": {**VALUES["model"], "source": "moved.safetensors"},
    }
    assert differences(VALUES, other) == []
    assert Manifest(other).run_id == Manifest(VALUES).run_id


@pytest.mark.parametrize("name", ["kind", "sigma", "alpha", "indices", "format"])
def test_anything_else_does(name):
    other = {**VALUES, name: "other"}
    assert [one.partition(":")[0] for one in differences(VALUES, other)] == [name]
    assert Manifest(other).run_id != Manifest(VALUES).run_id


def test_differences_are_named_with_dots_and_shown_from_both_sides():
    other = {**VALUES, "procedure": {"name": "FixedN", "n": 65, "more": 1}, "indices": list(range(1000))}
    found = differences(VALUES, other)
    assert found[:2] == ["procedure.n: 64 -> 65", "procedure.more: null -> 1"]
    assert found[2].startswith("indices: [3, 1, 2] -> [0, 1, 2")
    assert len(found[2]) < 100


def test_what_has_gone_is_a_difference():
    less = {name: value for name, value in VALUES.items() if name != "sigma"}
    assert differences(VALUES, less) == ["sigma: 0.5 -> null"]


def test_the_order_of_names_is_no_difference():
    turned = dict(reversed(VALUES.items()))
    assert Manifest(turned).run_id == Manifest(VALUES).run_id
    assert differences(VALUES, turned) == []


def test_a_folder_that_takes_no_file_is_an_error_of_ours(tmp_path):
    with pytest.raises(OutputError):
        Manifest(VALUES).write(tmp_path / "nowhere")


def test_a_real_run_tells_all_that_determines_it(whole):
    values = read_manifest(whole).values
    assert {"sigma", "alpha", "noise", "procedure", "model", "data", "indices", "key", "seed", "plan"} <= set(values)
    assert values["plan"]["batch_size"] == FLAGS["batch_size"]
    assert values["plan"]["chunk"] == FLAGS["chunk"]
    assert {"smoothcert", "torch"} <= set(values["versions"])
    assert values["model"]["weights_hash"].startswith("sha256:")
    assert values["data"]["fingerprint"].startswith("sha256:")
