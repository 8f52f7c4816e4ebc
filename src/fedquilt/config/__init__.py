"""A recipe: its settings with their bounds, the choices that it names, and the data that it asks for."""
