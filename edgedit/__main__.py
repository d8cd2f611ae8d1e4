"""``python -m edgedit``."""

import sys

from edgedit.cli import main

sys.exit(main())
