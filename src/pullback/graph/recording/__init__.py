"""Which line and which module made each node: noted while the program runs, and found again by torch's number."""
