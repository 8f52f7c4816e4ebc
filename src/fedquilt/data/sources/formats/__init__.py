"""Readers of data sets in the files their authors publish: one function for each, from a folder to Arrays.

Every reader takes the folder into which the official files were unpacked; the files may lie in it or up to two folders
deeper, as archives leave them. A missing or malformed file raises InputError with the file's name.
"""
