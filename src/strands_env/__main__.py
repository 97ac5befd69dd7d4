"""`python -m strands_env`: the command `strands-env`."""

import sys

from strands_env.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
