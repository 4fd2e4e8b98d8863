"""Many runs from one command: a grid of points, what is done of it, and who runs the rest."""
