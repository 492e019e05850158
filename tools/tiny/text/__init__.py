"""The training text: one module for each domain, all of it written for this model."""
