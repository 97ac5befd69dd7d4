"""`python -m strands_env.eval`, the command line of upstream's strands-env: it names its replacement."""

import sys

if __name__ == "__main__":
    sys.stderr.write("python -m strands_env.eval --benchmark NAME is now: strands-env eval NAME (--help shows more)\n")
    sys.exit(2)
