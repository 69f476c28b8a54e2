"""``python -m octavo.cli``: the same as ``octavo``."""

import sys

from octavo.cli.main import main

sys.exit(main())
