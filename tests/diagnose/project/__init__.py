"""A small training program in several files, with one fault, ten calls deep."""
