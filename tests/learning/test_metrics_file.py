"""Metrics of a run, read back."""

import subprocess
import sys
from pathlib import Path

import pytest

_READ = """
import sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from heliomesh.learning.run import read_metrics

def threads():
    return len(list(Path("/proc/self/task").iterdir()))

where = Path(sys.argv[1])
columns = {"slot": [1, 2], "device_accuracy": [[0.5], [0.6]], "device_loss": [[1.0], [0.9]]}
pq.write_table(pa.table(columns), where)
before = threads()
metrics, accuracy, loss = read_metrics(where)
print(accuracy.tolist(), loss.tolist(), metrics["slot"].tolist(), threads() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_no_thread_of_the_reader_outlives_it(tmp_path: Path) -> None:
    """A thread that let go of the file's bytes while Python ended aborted every third run."""
    words = [sys.executable, "-c", _READ, str(tmp_path / "metrics.parquet")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    assert ended.stdout == "[[0.5], [0.6]] [[1.0], [0.9]] [1.0, 2.0] 0\n", ended.stderr
