"""``fedquilt watch``: a page on this machine that follows runs by what they leave in their folders."""
