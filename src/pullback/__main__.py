"""``python -m pullback``: the same as the command ``pullback``."""

from pullback.cli.main import main

main()
