from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import numpy as np
import pytest

from smoothcert.errors import ConfigError
from smoothcert.streams import Stream, make_key

KEY = make_key(7)


def test_a_longer_request_begins_with_a_shorter_one():
    stream = Stream(KEY, "index:3", 0)
    assert np.array_equal(stream.words(2, 0, 1000)[:17], stream.words(2, 0, 17))


def test_every_key_input_stage_block_and_lane_has_words_of_its_own():
    words = [
        Stream(key, name, stage).words(block, lane, 64)
        for key in (KEY, make_key(8))
        for name in ("index:1", "index:11", "sha256:1")
        for stage in (0, 1)
        for block in (0, 1)
        for lane in (0, 1)
    ]
    assert all(not np.intersect1d(a, b).size for a, b in combinations(words, 2))


def test_blocks_of_one_stream_are_disjoint_stretches_of_one_counter():
    """Different blocks differ in an upper word of the counter, so they could only meet after 2^128 steps."""
    a = Stream(KEY, "index:0", 0).words(0, 0, 2**16)
    b = Stream(KEY, "index:0", 0).words(1, 0, 2**16)
    assert not np.intersect1d(a, b).size


def test_threads_draw_the_same_words_as_one_thread_does():
    def draw(block):
        return Stream(KEY, "index:5", 1).words(block, 0, 500)

    with ThreadPoolExecutor(4) as pool:
        threaded = list(pool.map(draw, range(8)))
    assert all(np.array_equal(a, draw(block)) for block, a in enumerate(threaded))


def test_the_bits_are_fair():
    bits = np.unpackbits(Stream(KEY, "index:9", 0).words(0, 0, 2**16).view(np.uint8))
    # 4.2 million fair bits: five standard deviations are 0.0012
    assert abs(bits.mean() - 0.5) < 0.0012
    assert abs(np.corrcoef(bits[:-1], bits[1:])[0, 1]) < 0.0025


def test_a_seed_repeats_its_key_and_no_seed_never_does():
    assert make_key(7) == KEY
    assert make_key(7) != make_key(8)
    assert len(make_key(None)) == 32
    assert make_key(None) != make_key(None)


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True])
def test_a_seed_that_is_no_whole_number_is_refused(seed):
    with pytest.raises(ConfigError, match="seed"):
        make_key(seed)
