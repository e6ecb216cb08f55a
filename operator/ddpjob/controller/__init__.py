"""The loop: what is seen becomes jobs to look at, and plans become requests."""
