"""One file per promise of a function beside its numbers: repeatable, without side effects, for any layout and size."""
