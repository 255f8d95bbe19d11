"""How diagnoses are shown: as text, in colour, as JSON, as SARIF."""
