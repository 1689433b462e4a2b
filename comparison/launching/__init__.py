"""From a setting to the record of its launch."""
