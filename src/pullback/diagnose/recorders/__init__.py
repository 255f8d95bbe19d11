"""What is noted while a program runs, without changing what it computes and without keeping a tensor alive."""
