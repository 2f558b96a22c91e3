"""Model configurations: the config.pbtxt text format, and what is generated from a service."""
