"""What every package may use: errors, places and their credentials, small files, locks, the checks of values, shared choices."""
