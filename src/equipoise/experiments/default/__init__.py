"""Beyond the paper: conversions and the default method beside others."""
