"""What running servers do at this moment: two looks, and their difference as figures."""
