"""What tests and notebooks share before anything is imported: one thread, so that numbers are the
same everywhere; what a frozen stem says of an image is kept between workers, outside the user's
home; no progress bars in compared outputs."""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("FEDBOOK_CACHE", str(Path(tempfile.gettempdir()) / "fedbook-tests"))
os.environ.setdefault("TQDM_DISABLE", "1")
