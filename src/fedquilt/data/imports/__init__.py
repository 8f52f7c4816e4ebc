"""Users' own data in common forms: tables, image folders, PFLlib splits, Hugging Face and Flower data sets."""

from fedquilt.data.imports.columns import Words
from fedquilt.data.imports.folders import of_folder
from fedquilt.data.imports.hub import of_flwr, of_hf
from fedquilt.data.imports.opening import open
from fedquilt.data.imports.pfllib import is_split, of_pfllib
from fedquilt.data.imports.tables import cells as cells
from fedquilt.data.imports.tables import of_csv, of_parquet

__all__ = ["Words", "is_split", "of_csv", "of_flwr", "of_folder", "of_hf", "of_parquet", "of_pfllib", "open"]
