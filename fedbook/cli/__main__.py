"""`python -m fedbook.cli`."""

import sys

from fedbook.cli import main

sys.exit(main())
