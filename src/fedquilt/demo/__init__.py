"""Five problems of federated learning, each played in small on real data: what a system gains, and where it does not.

A scene is a recipe of ``recipes/demo``, played as ``fedquilt compare`` plays it; here its numbers become a sentence
and a picture, and all scenes become one page.
"""
