"""Records and their frames: what travels between server and clients and what is kept, as bytes that are checked."""
