"""Published evidence: fetched from its publisher at a fixed commit, checked by SHA-256, kept with its attribution."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import pytest

from evidence import FOLDER, LOGS, PUBLISHED
from smoothcert.data import check, fetch, published_folder
from smoothcert.data.fetching import named, whereabouts
from smoothcert.data.known import KNOWN, Download
from smoothcert.data.publications import ATTRIBUTION_FILE, COHEN2019, COHEN2019_VOTES, PUBLICATIONS, WONG2018
from smoothcert.errors import InputError, OutputError

# Each publication, and the folder that has the same bytes where they are on this machine.
COPIES = [
    (COHEN2019, LOGS),
    (COHEN2019_VOTES, PUBLISHED / "accelerated_smoothing"),
    (WONG2018, FOLDER / "weights" / "wong2018"),
]
CONTENT = {"certify/net/sigma_0.25": b"idx\tlabel\n", "predict/net/N_100": b"idx\tpredict\n"}


def downloads(content):
    return tuple(Download(path, len(text), hashlib.sha256(text).hexdigest()) for path, text in content.items())


@pytest.fixture
def logs(server, monkeypatch):
    """Two small files under the name of the paper's logs, on the server."""
    server.files |= {f"/{path}": text for path, text in CONTENT.items()}
    publication = replace(COHEN2019, downloads=downloads(CONTENT))
    monkeypatch.setitem(PUBLICATIONS, "cohen2019", publication)
    return publication


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_files_come_from_the_publisher_at_a_fixed_commit():
    assert COHEN2019.url == (
        "https://raw.githubusercontent.com/locuslab/smoothing/78a4d949e4f627d000a78908e001f8ca66c92943/data"
    )
    assert COHEN2019_VOTES.url == (
        "https://raw.githubusercontent.com/FireShadow05/accelerated_smoothing/f56c7bff7084bd38ecc96cfbe49ea205cf460271"
    )
    assert WONG2018.url == (
        "https://raw.githubusercontent.com/locuslab/convex_adversarial/2cd8149249b9e90383af10fc7e9b9fe90166813e/"
        "models_scaled_l2"
    )
    assert len(COHEN2019.downloads) == 17
    assert [one.file for one in COHEN2019_VOTES.downloads] == [
        f"our_sampled_data/data_{sigma}/test/smooth_outs_100000.pth" for sigma in ("0.12", "0.25", "0.5", "1.0")
    ]


def test_every_file_has_a_size_and_a_sha256_sum_of_its_own_and_no_name_is_a_data_set_s():
    for publication in PUBLICATIONS.values():
        sums = [download.checksum for download in publication.downloads]
        assert all(re.fullmatch(r"[0-9a-f]{64}", one) for one in sums)
        assert len(set(sums)) == len(sums)
        assert all(download.size > 1000 for download in publication.downloads)
    assert not set(PUBLICATIONS) & set(KNOWN)


def test_files_keep_their_paths_and_have_their_attribution_beside_them(logs, server, tmp_path):
    new = fetch("Cohen_2019", tmp_path, mirror=server.url)
    folder = tmp_path / "cohen2019"
    assert files_in(folder) == [ATTRIBUTION_FILE, *CONTENT]
    assert [path.read_bytes() for path in new] == list(CONTENT.values())
    text = (folder / ATTRIBUTION_FILE).read_text("utf-8")
    assert text == logs.attribution
    for part in (logs.repository, logs.commit, "licence: ", "cite: J. M. Cohen"):
        assert part in text
    assert check("cohen2019", tmp_path) == new
    assert published_folder("cohen2019", tmp_path) == whereabouts(tmp_path)["cohen2019"] == folder


def test_only_what_is_missing_or_damaged_is_fetched_again(logs, server, tmp_path):
    fetch("cohen2019", tmp_path, mirror=server.url)
    server.requests.clear()
    assert fetch("cohen2019", tmp_path, mirror=server.url) == []
    damaged = tmp_path / "cohen2019" / "predict/net/N_100"
    damaged.write_bytes(b"idx\tPREDICT\n")
    with pytest.raises(InputError, match=rf"Expected the SHA256 sum \w+ of {damaged}, got \w+\. Fetch it again"):
        published_folder("cohen2019", tmp_path)
    assert fetch("cohen2019", tmp_path, mirror=server.url) == [damaged]
    assert server.requests == ["/predict/net/N_100"]


@pytest.mark.parametrize("change", [bytes.upper, lambda text: text[:-1], lambda text: text + b"\n"])
def test_a_file_that_differs_from_the_published_one_is_not_kept(logs, server, tmp_path, change):
    server.files["/predict/net/N_100"] = change(CONTENT["predict/net/N_100"])
    with pytest.raises(InputError, match=r"Expected .* of|Expected \d+ bytes from"):
        fetch("cohen2019", tmp_path, mirror=server.url)
    assert files_in(tmp_path) == ["cohen2019/certify/net/sigma_0.25"]
    assert whereabouts(tmp_path)["cohen2019"] is None


def test_what_is_not_there_says_what_to_run(tmp_path):
    for name in PUBLICATIONS:
        with pytest.raises(InputError, match=rf"{name} is not there: .* Run: smoothcert data fetch {name}$"):
            published_folder(name, tmp_path)


def test_a_publication_has_no_splits_and_a_data_set_is_no_publication(logs, server, tmp_path):
    with pytest.raises(InputError, match="no split of cohen2019"):
        fetch("cohen2019", tmp_path, split="test", mirror=server.url)
    with pytest.raises(InputError, match="one of cohen2019, cohen2019-votes, wong2018, got 'mnist'"):
        published_folder("mnist", tmp_path)
    with pytest.raises(InputError, match="Did you mean 'cohen2019'"):
        named("cohen2018")


def test_a_folder_that_cannot_be_written_is_an_output_error(logs, server, tmp_path):
    (tmp_path / "cohen2019").write_text("a file")
    with pytest.raises(OutputError, match="Cannot write into"):
        fetch("cohen2019", tmp_path, mirror=server.url)


@pytest.mark.parametrize(("publication", "copy"), COPIES, ids=lambda one: getattr(one, "name", ""))
def test_the_published_bytes_arrive_whole(publication, copy, server, tmp_path):
    if not copy.is_dir():
        pytest.skip(f"the published files are not there: {copy}")
    server.files |= {f"/{one.file}": (copy / one.file).read_bytes() for one in publication.downloads}
    new = fetch(publication.name, tmp_path, mirror=server.url)
    assert len(new) == len(publication.downloads)
    assert published_folder(publication.name, tmp_path) == tmp_path / publication.name
    if publication is COHEN2019:  # nothing that was published is left out
        assert files_in(copy) == sorted(one.file for one in publication.downloads)
