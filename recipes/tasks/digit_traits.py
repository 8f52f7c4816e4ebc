"""What is true of the numbers that scikit-learn's digits show."""

import numpy as np
from sklearn.datasets import load_digits


def traits():
    """Pictures [rows, 1, 8, 8] and four labels each: odd, above 4, prime, drawn with a loop."""
    images, digit = load_digits(return_X_y=True)
    labels = [digit % 2, digit > 4, np.isin(digit, (2, 3, 5, 7)), np.isin(digit, (0, 6, 8, 9))]
    return (images / 16).astype(np.float32).reshape(-1, 1, 8, 8), np.stack(labels, axis=1).astype(np.int64)
