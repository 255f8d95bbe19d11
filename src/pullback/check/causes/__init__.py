"""One file per cause: each looks at the evidence and says whether it explains it."""
