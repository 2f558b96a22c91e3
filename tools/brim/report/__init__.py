"""A run folder as one page that needs nothing else, and as a summary in Markdown."""
