"""From records to figures, verdicts, tables and plots."""
