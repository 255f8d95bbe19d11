"""Custom Functions and functional calls that are silently wrong."""
