"""Several servers of the same models behind one gateway."""
