"""`python -m strands_sglang`: the command `strands-sglang`."""

import sys

from strands_sglang.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
