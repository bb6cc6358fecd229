"""The paper's tables and figures as data, one command each, resumable."""
