"""Published methods, one file each."""
