"""One file for each cause of an error, and for each silent fault; the folders are families."""
