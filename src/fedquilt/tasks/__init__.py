"""Tasks: what targets are, what a model makes of a row, and by what it is judged. One file for each."""

from fedquilt.tasks.multi_label import MultiLabel
from fedquilt.tasks.regression import Regression
from fedquilt.tasks.single_label import SingleLabel
from fedquilt.tasks.task import Task

__all__ = ["MultiLabel", "Regression", "SingleLabel", "Task"]
