"""Factors of the queries that grow with the number of keys."""
