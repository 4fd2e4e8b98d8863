"""The Transformer and attention under any scheme."""
