"""Where the path from the parameters to the root was cut, and by what."""
