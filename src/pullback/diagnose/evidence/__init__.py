"""What a failed program tells: its frames, its source, what torch was asked for, and what the recorders noted."""
