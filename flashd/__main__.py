"""`python -m flashd`."""

from __future__ import annotations

import sys

from flashd.cli.main import main

sys.exit(main())
