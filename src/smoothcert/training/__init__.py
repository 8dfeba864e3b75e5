"""Training base classifiers that stay accurate under the noise they will be smoothed with."""
