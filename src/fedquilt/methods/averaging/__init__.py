"""One global model, and the frames that every study needs."""
