"""kt runs large sparse Mixture-of-Experts language models on the machine its user already has."""

__version__ = "0.1.0"
