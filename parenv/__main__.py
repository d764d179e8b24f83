"""``python -m parenv`` is the command ``parenv``."""

import sys

from parenv.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
