"""Pictures of plain values: what is drawn knows nothing of autograd, and how it is drawn nothing of what it means."""
