"""The verbs: arguments checked, errors that name the user's own argument."""
