"""The set-up: `make setup` runs this package with bootstrap.sh; standard library only."""
