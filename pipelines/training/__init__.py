"""What one worker does."""
