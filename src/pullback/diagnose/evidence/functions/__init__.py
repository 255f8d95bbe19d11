"""Custom Functions, hooks and what runs around them, as they are written."""
