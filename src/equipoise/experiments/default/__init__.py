"""Beyond the paper: conversions and the default method compared with others."""
