"""The command line: one file per command, whose function imports what it needs when it runs."""
