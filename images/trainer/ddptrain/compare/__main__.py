"""`python -m ddptrain.compare`."""

import sys

from ddptrain.compare.main import main

if __name__ == "__main__":
    sys.exit(main())
