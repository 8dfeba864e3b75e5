"""What a run's numbers look like: tables, figures, files."""
