"""Communication alone, by message size: compare.py --comm_only."""
