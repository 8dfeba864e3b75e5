"""The statistics of smoothing: integer votes in, true lower bounds out. No torch in here."""
