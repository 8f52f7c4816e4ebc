"""Real federations: sites that join, a server that serves, and the keys by which they know each other."""
