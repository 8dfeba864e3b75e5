import subprocess
import sys

MEASURE = """
import resource, sys, tempfile
import numpy as np
from smoothcert import runs
from smoothcert.data import ArrayData
from smoothcert.models.architectures import small_cnn
from smoothcert.training.loop import seeded

data = ArrayData(np.full((1, 1, 8, 8), 99, np.uint8), np.array([0]), None, "one")
network = seeded(small_cnn, 0)
for n in (1_000, 10_000, 1_000_000):
    with tempfile.TemporaryDirectory() as folder:
        settings = runs.CertifySettings(sigma=0.25, seed=0, batch_size=256, procedure="paper", n_max=n)
        runs.certify_dataset(network, data, folder + "/run", settings)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_stays_flat_from_a_thousand_to_a_million_draws():
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    first, _, last = map(int, done.stdout.split())
    assert last < 1.05 * first
