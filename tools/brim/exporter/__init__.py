"""What Triton and the gateway do not tell Prometheus by themselves, read from what they tell otherwise."""
