"""Data that need not fit in memory: rows of files, of folders of images, and of torch data sets."""
