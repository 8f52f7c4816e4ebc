"""Data sets by name: the files that their authors publish, downloads, caches, and sets of other packages."""

from fedquilt.data.sources.sources import available as available
from fedquilt.data.sources.sources import fetch as fetch
from fedquilt.data.sources.sources import read as read
from fedquilt.data.sources.sources import texts as texts
from fedquilt.data.sources.sources import verify as verify
