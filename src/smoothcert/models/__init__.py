"""Base classifiers: the contract they must keep, layers to wrap them in, a few architectures."""
