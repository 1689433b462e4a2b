"""The parts of the command data.inspect."""
