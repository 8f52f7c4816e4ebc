"""A metric of one's own: the area under the ROC curve, each class against the rest, of each client's samples."""

import math

from sklearn.metrics import roc_auc_score


def auroc(scores, labels):
    """A number of scores [rows, classes] and labels [rows]; NaN where a client has rows of one class only."""
    shares = scores.double().softmax(1).numpy()
    kinds = [c for c in range(shares.shape[1]) if 0 < int((labels == c).sum()) < len(labels)]
    if not kinds:
        return math.nan
    return sum(roc_auc_score(labels.numpy() == c, shares[:, c]) for c in kinds) / len(kinds)
