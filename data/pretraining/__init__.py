"""From stored tokens to the masked batches of one rank."""
