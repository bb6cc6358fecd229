"""Section 4.2 and appendix B.2 of the paper: federated learning."""
