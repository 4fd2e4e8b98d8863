"""Runs the command line: python -m lengthgen, and torchrun -m lengthgen."""

from lengthgen.cli import main

if __name__ == "__main__":
    main()
