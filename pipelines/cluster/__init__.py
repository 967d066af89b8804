"""Starting and joining Ray, checks of machines, Ray Train."""
