"""A process that does nothing until its standard input ends, whatever its arguments are."""

import sys

sys.stdin.read()
