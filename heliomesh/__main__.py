"""``python -m heliomesh``: the command line."""

from heliomesh.cli import main

main()
