"""`python -m ovspec` is the `ovspec` command."""

from ovspec.cli import main

main()
