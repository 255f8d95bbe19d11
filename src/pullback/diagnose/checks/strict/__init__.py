"""What only the strict level looks for: it reads bytes and calls Functions once more."""
