"""Conversions at the edges: milliseconds in service files and tables, integer microseconds everywhere else."""

US_PER_MS = 1_000
US_PER_S = 1_000_000


def ms_to_us(value_ms: float) -> int:
    """Milliseconds to integer microseconds, rounded to the nearest."""
    return round(value_ms * US_PER_MS)


def us_to_ms(value_us: float) -> float:
    """Microseconds to milliseconds."""
    return value_us / US_PER_MS


def ns_to_us(value_ns: float) -> int:
    """Nanoseconds (Triton's statistics) to integer microseconds, rounded to the nearest."""
    return round(value_ns / 1_000)
