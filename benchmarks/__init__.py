"""Speed, measured: ratios in one run against a named baseline."""
