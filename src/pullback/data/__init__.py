"""Values only: nothing here runs the user's function."""
