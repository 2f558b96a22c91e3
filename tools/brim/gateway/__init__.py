"""The gateway: Envoy in front of Triton, for what Triton itself cannot do."""
