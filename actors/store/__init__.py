"""The store: the truth that every index is rebuilt from."""
