"""The network: its configuration, its blocks on MXNet's operators and on this project's, parameter files."""
