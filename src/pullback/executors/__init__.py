"""Where passes run, and in what chunks."""
