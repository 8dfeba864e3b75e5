"""Attacks: how small a change of the input is known to change the answer. They bound robustness from above."""
