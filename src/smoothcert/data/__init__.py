"""Data sets of 8-bit images, and which of their inputs to look at."""
