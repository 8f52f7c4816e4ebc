"""The same method on a real Flower federation. Only this room imports flwr."""
