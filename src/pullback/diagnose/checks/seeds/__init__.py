"""Roots and seeds: what ``backward`` was asked for."""
