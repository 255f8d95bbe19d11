"""The command line: each command is a thin door to a function of the library."""
