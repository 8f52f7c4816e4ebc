"""A round: the server's half of every engine, and what happens at a client."""
