"""`python -m consumer`: the same as the console script."""

from consumer.cli import main

main()
