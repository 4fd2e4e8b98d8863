"""The rules of tasks: a file with a Task is all that a new one needs."""
