"""How much of its context a model uses: what it copies, what it finds, and which tokens need it."""
