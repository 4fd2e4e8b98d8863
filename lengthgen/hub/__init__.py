"""Hugging Face in and out: lengthgen import, lengthgen export, and `exported.load_exported`."""
