"""Code that all packages share: errors, places and their credentials, small files, locks, the checks of values, shared choices."""
