"""Published evidence to test against (logs, votes, photographs, networks): the folder $SMOOTHCERT_TEST_DATA.

Tests that need a part of it are skipped where it is not there.
"""

import os
from pathlib import Path

FOLDER = Path(os.environ.get("SMOOTHCERT_TEST_DATA", "SMOOTHCERT_TEST_DATA")).absolute()
PUBLISHED = FOLDER / "published"
LOGS = PUBLISHED / "cohen2019"
VOTES = PUBLISHED / "cohen_resnet110_cifar10_counts_test.npz"  # by github.com/FireShadow05/accelerated_smoothing
PHOTOGRAPHS = FOLDER / "imagenet-val-50"
WEIGHTS = FOLDER / "weights"
