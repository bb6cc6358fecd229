"""Section 4.1 and appendix B.1 of the paper: the synthetic problems."""
