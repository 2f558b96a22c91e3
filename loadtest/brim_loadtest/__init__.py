"""The place of the load tests (Locust users, traffic shapes, verdicts). None is written yet."""
