"""What people look at: the only matplotlib. Each module draws one kind of picture from numbers."""
