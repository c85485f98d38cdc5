"""Memory of a process that reads much: small, and the same at the end as at the beginning."""

import os
import subprocess
import sys
from pathlib import Path

PICTURES = int(os.environ.get("FRAMECACHE_TEST_PICTURES", "10000"))
PRIVATE_BYTES_MAX = 64 << 20
# Noise of the allocator; a leak of one picture in a hundred would be fifteen times this.
GROWTH_BYTES_MAX = 1 << 20

SCRIPT = """
import sys
import numpy
import framecache as fc
sys.path.insert(0, sys.argv[1])
from conftest import private_bytes
client = fc.Client("env", memory="32MiB")
uris, most, after = [f"s3://photos/same/{i:02}.jpg" for i in range(64)], 0, []
for _ in range(-(-int(sys.argv[2]) // len(uris))):
    batch = client.images(uris, fc.Image(short=256, crop=224))
    array = numpy.asarray(batch.data)
    assert array.any()
    most = max(most, private_bytes() - array.nbytes)
    del batch, array
    after.append(private_bytes())
quarter = len(after) // 4
early, late = (sum(part) // len(part) for part in (after[quarter : 2 * quarter], after[-quarter:]))
print(most, max(after), late - early)
"""


def test_private_memory_is_small_and_flat(cluster):
    """With `memory="32MiB"`: interpreter, numpy and client under 64 MiB beside the pictures that are held; no growth."""
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, here, str(PICTURES)],
        env=cluster.environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    most, between, growth = map(int, done.stdout.split())
    beside, between_mib = most / 2**20, between / 2**20
    print(f"{PICTURES} pictures: {beside:.1f} MiB beside the batch, {between_mib:.1f} MiB between batches, growth {growth}")
    assert max(most, between) <= PRIVATE_BYTES_MAX
    assert growth <= GROWTH_BYTES_MAX
