"""The service file: what a person decides about one model, and everything else is derived from."""
