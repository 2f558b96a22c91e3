"""More than one GPU: how many replicas a service needs, and when."""
