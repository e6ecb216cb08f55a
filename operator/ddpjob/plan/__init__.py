"""What is known of a job → what to do next. Pure: no clock, no I/O."""
