"""Groups of clients: finding them, naming them, and placing new clients among them."""
