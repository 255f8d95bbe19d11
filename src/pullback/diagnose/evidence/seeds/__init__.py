"""Roots and their seeds, and what would fit."""
