"""What tests and notebooks share before anything is imported: one thread, so that numbers are the
same everywhere; one folder for what frozen networks say of images, gone when the tests are done; no
progress bars in compared outputs."""

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
if "FEDBOOK_CACHE" not in os.environ:  # workers inherit it from the first process
    os.environ["FEDBOOK_CACHE"] = tempfile.mkdtemp(prefix="fedbook-tests-")
    atexit.register(shutil.rmtree, os.environ["FEDBOOK_CACHE"], ignore_errors=True)
