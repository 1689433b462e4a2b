"""Parameter files: MXNet's format, bare files checked, GluonNLP's downloads."""
