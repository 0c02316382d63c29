"""The commands of ``muniment``, a module for each group."""
