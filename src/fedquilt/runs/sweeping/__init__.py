"""Sweeps: many settings of one method, chosen on validation rows."""
