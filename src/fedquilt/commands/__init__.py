"""The commands of ``fedquilt``, by what they are about; ``fedquilt.cli`` puts them together."""
